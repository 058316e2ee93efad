// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <ctime>
#include <limits>

#include "kernels/flat_kernels.hpp"
#include "kernels/matmul.hpp"
#include "kernels/row_kernels.hpp"
#include "model/attention.hpp"
#include "parallel/torch_dtype.hpp"
#include "train/profile.hpp"

namespace zea {
namespace {

using at::Tensor;

/// The shapes that are measured.
struct MeasuredShapes {
  std::vector<double> gemm_dims;      ///< the smallest dimension of GEMMs, ascending
  int64_t least_length, most_length;  ///< the other two
  int64_t rows, width;                ///< of elementwise kernels
  int64_t tokens, heads, head_dim;
  int64_t flat_elements;  ///< of the optimizer's tensors

  static MeasuredShapes on(at::Device device) {
    if (device.is_cpu()) return {{8, 32, 128, 512}, 128, 1024, 1024, 1024, 1024, 4, 64, 1 << 22};
    return {{64, 256, 1024, 4096}, 1024, 8192, 8192, 4096, 4096, 16, 128, 1 << 26};
  }
};

constexpr int kRounds = 10;
constexpr double kRoundSeconds = 0.005;  ///< short, so that some are undisturbed

class DeviceProfiler {
 public:
  explicit DeviceProfiler(at::Device device)
      : device_(device),
        shapes_(MeasuredShapes::on(device)),
        marker_(at::zeros({1}, at::TensorOptions(device))) {}

  const std::vector<double>& gemm_dims() const { return shapes_.gemm_dims; }

  /// FLOP/s of a linear's three GEMMs with this smallest dimension: that is the rows, the inputs,
  /// or the outputs. The other two are a few times as long, as in models.
  double gemm_rate(DType type, double dim) const {
    constexpr int64_t kTimes = 4;
    const auto small = static_cast<int64_t>(dim);
    const int64_t length = std::clamp(kTimes * small, shapes_.least_length, shapes_.most_length);
    const int64_t places[][3] = {
        {small, length, length}, {length, small, length}, {length, length, small}};
    double flops = 0, seconds = 0;
    for (const auto& [rows, in, out] : places) {
      const Tensor x = random({rows, in}, type), weight = random({out, in}, type);
      const Tensor y = random({rows, out}, type), dx = random({rows, in}, type);
      const bool is_double = type == DType::Float64;
      const Tensor d_weight = random({out, in}, is_double ? type : DType::Float32);
      flops += 3 * 2 * static_cast<double>(rows * in * out);
      seconds += seconds_of([&] {
        product_into(y, x, weight.t());
        product_into(dx, y, weight);
        add_product(d_weight, y.t(), x);
      });
    }
    return flops / seconds;
  }

  /// FLOP/s of causal attention, forward and backward.
  double attention_rate(DType type) const {
    const int64_t tokens = shapes_.tokens, heads = shapes_.heads, head_dim = shapes_.head_dim;
    const at::AutoGradMode recording(true);
    Tensor qkv = random({tokens, 3 * heads, head_dim}, type).requires_grad_();
    const AttentionMask mask({{0, tokens}}, true, device_);
    const Tensor d_out = random({tokens, heads * head_dim}, type);
    const double seconds = seconds_of([&] {
      torch::autograd::backward({attention(qkv, mask, heads, heads)}, {d_out});
      qkv.mutable_grad().reset();
    });
    const double pairs = 0.5 * static_cast<double>(tokens) * static_cast<double>(tokens + 1);
    return 3 * 4 * pairs * static_cast<double>(heads * head_dim) / seconds;
  }

  /// Bytes a second of a gate and a norm, which read and write rows, forward and backward: as the
  /// estimate counts them, for which backward moves 1.5 times as much.
  double memory_rate(DType type) const {
    const Tensor pairs = random({shapes_.rows, 2 * shapes_.width}, type);
    const Tensor x = random({shapes_.rows, shapes_.width}, type), dy = at::ones_like(x);
    const NormParameters norm{.weight = random({shapes_.width}, type), .bias = {}, .eps = 1e-6};
    const double seconds = seconds_of([&] {
      gated_forward(pairs, Gating::Silu);
      const NormRows rows = norm_forward(x, {}, norm);
      norm_backward(dy, {}, rows, norm, {});
      gated_backward(dy, pairs, Gating::Silu);
    });
    constexpr double kTensors = 3 + 2, kBoth = 1 + 1.5;
    return kTensors * kBoth * static_cast<double>(x.nbytes()) / seconds;
  }

  /// Bytes a second of AdamW: as the estimate counts them, with the gradient set to zero.
  double optimizer_rate() const {
    std::vector<Tensor> flats;
    for (int i = 0; i < 4; ++i) flats.push_back(random({shapes_.flat_elements}, DType::Float32));
    const AdamwUpdate update{.lr = 1e-6};
    const double seconds = seconds_of([&] {
      adamw({{flats[0], flats[1], flats[2], flats[3].abs_(), update}});
      flats[1].zero_();
    });
    constexpr double kPasses = 8;
    return kPasses * static_cast<double>(flats[0].nbytes()) / seconds;
  }

 private:
  Tensor random(at::IntArrayRef shape, DType type) const {
    return at::randn(shape, at::TensorOptions(device_).dtype(at::kFloat)).to(to_torch(type));
  }
  void finish() const { marker_.item(); }

  /// Seconds that only differences of count. On the host those of the processor, which others that
  /// use it do not lengthen.
  double now() const {
    timespec time{};
    clock_gettime(device_.is_cpu() ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    const double seconds =
        static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    return device_.is_cpu() ? seconds / at::get_num_threads() : seconds;
  }

  /// Seconds of a call, the best of a few rounds of as many calls as take a while.
  template <class Call>
  double seconds_of(Call call) const {
    call();  // finds cold memory
    finish();
    double best = std::numeric_limits<double>::infinity();
    int64_t calls = 1;
    for (int round = 0; round < kRounds;) {
      const double begin = now();
      for (int64_t i = 0; i < calls; ++i) call();
      finish();
      const double seconds = now() - begin;
      if (seconds < kRoundSeconds) {
        calls *= 2;
        continue;
      }
      best = std::min(best, seconds / static_cast<double>(calls));
      ++round;
    }
    return best;
  }

  at::Device device_;
  MeasuredShapes shapes_;
  Tensor marker_;
};

/// Shares must not fall, nor grow faster than dimensions (read_hardware()).
std::vector<double> shares_of(const std::vector<double>& rates, double peak,
                              const std::vector<double>& dims) {
  std::vector<double> shares;
  for (size_t i = 0; i < rates.size(); ++i) {
    double share = std::min(1.0, rates[i] / peak);
    if (i > 0) share = std::clamp(share, shares[i - 1], shares[i - 1] * dims[i] / dims[i - 1]);
    shares.push_back(std::min(1.0, share));
  }
  return shares;
}

}  // namespace

DeviceRates profile_device(at::Device device, DType type, double peak_tflops) {
  constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;
  const at::NoGradGuard no_gradient;
  const DeviceProfiler profiler(device);
  DeviceRates rates;
  rates.gemm_dims = profiler.gemm_dims();
  std::vector<double> of_type;
  for (const double dim : rates.gemm_dims) of_type.push_back(profiler.gemm_rate(type, dim));
  const double best = std::ranges::max(of_type);
  const double peak = std::max(kTera * peak_tflops, best);
  rates.gemm_efficiency = shares_of(of_type, peak, rates.gemm_dims);
  for (const auto& [other, tflops] : {std::pair(DType::BFloat16, &rates.bf16_tflops),
                                      std::pair(DType::Float32, &rates.fp32_tflops),
                                      std::pair(DType::Float64, &rates.fp64_tflops)}) {
    const double reached = other == type ? best : profiler.gemm_rate(other, rates.gemm_dims.back());
    *tflops = reached * (peak / best) / kTera;
  }
  rates.attention_efficiency = std::min(1.0, profiler.attention_rate(type) / peak);
  rates.memory_gb_per_s = profiler.memory_rate(type) / kGiga;
  rates.optimizer_gb_per_s = profiler.optimizer_rate() / kGiga;
  rates.launch_us = launch_seconds(device, type) / kMicro;
  rates.launches_ahead = !device.is_cpu();
  rates.overlaps = !device.is_cpu();
  const double slower = std::max(1.0, block_seconds_over_planned(device, type, rates));
  for (double& share : rates.gemm_efficiency) share /= slower;
  rates.attention_efficiency /= slower;
  rates.memory_gb_per_s /= slower;
  return rates;
}

}  // namespace zea
