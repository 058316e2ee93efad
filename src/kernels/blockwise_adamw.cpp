// SPDX-License-Identifier: Apache-2.0
#include "kernels/flat_kernels.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "core/error.hpp"
#include "core/kernel_sizes.hpp"
#include "kernels/flat_functors.hpp"
#include "kernels/launch.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace {

using detail::BlockwiseAdamwBlock;
using detail::BlockwiseConstants;
using detail::elements;
using detail::kCodes;
using detail::MomentBlocks;

std::array<double, kCodes> make_codes(bool is_signed) {
  constexpr int kDecades = 7;
  std::vector<double> codes{0, 1};
  for (int decade = 0; decade < kDecades; ++decade) {
    const int parts = (is_signed ? 1 : 2) << decade;
    for (int part = 0; part < parts; ++part) {
      const double middle = 0.1 + 0.9 * (part + 0.5) / parts;
      codes.push_back(middle * std::pow(10.0, decade - kDecades + 1));
      if (is_signed) codes.push_back(-codes.back());
    }
  }
  std::ranges::sort(codes);
  std::array<double, kCodes> all{};
  ZEA_ASSERT(codes.size() == all.size());
  std::ranges::copy(codes, all.begin());
  return all;
}

/// Codes, and the borders between neighbours, where `like` is and of its type: copied there once,
/// since the host would wait for each copy.
struct CodeTensors {
  at::Tensor values, borders;

  CodeTensors(bool is_signed, const at::Tensor& like) {
    const std::array<double, kCodes>& codes = dynamic_codes(is_signed);
    const at::Tensor wide =
        at::tensor(at::ArrayRef<double>(codes.data(), codes.size()), at::kDouble);
    values = wide.to(like.options());
    borders = ((wide.slice(0, 1) + wide.slice(0, 0, -1)) / 2).to(like.options());
  }

  static const CodeTensors& of(bool is_signed, const at::Tensor& like) {
    using Kind = std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType, bool>;
    static auto* const all = new std::map<Kind, CodeTensors>;  // devices end before they would
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    const Kind kind{like.device().type(), like.device().index(), like.scalar_type(), is_signed};
    if (const auto known = all->find(kind); known != all->end()) return known->second;
    return all->emplace(kind, CodeTensors(is_signed, like)).first->second;
  }
};

template <class T>
MomentBlocks<T> blocks_of(const BlockwiseMoment& moment, bool is_signed) {
  const CodeTensors& codes = CodeTensors::of(is_signed, moment.scales);
  return {.codes = elements<uint8_t>(moment.codes),
          .scales = elements<T>(moment.scales),
          .values = elements<T>(codes.values),
          .borders = elements<T>(codes.borders),
          .least_code = is_signed ? 0 : 1};
}

template <class T>
void keep_block(const MomentBlocks<T>& blocks, int64_t b, const T* values, T largest,
                int64_t count) {
  uint8_t* const codes = blocks.codes + b * count;
  blocks.scales[b] = largest;
  if (!(largest > 0)) {
    std::fill_n(codes, count, uint8_t{0});
    return;
  }
  const MomentBlocks<T> own = blocks;  // no store can change it
  int found[kMostStateBlock];  // apart from the codes, whose narrow type would make vectors of few
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) found[i] = own.code(values[i], largest);
  for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(found[i]);
}

template <class T>
ZEA_FUNCTION void update_block(const BlockwiseAdamwBlock<T>& run, int64_t b) {
  const BlockwiseConstants<T> c = run.constants;
  const int64_t count = run.block, begin = b * count;
  const MomentBlocks<T> first = run.first, second = run.second;
  const T scale = first.scales[b], sq_scale = second.scales[b];
  T* const p = run.parameters + begin;
  const T* const g = run.gradients + begin;
  T m[kMostStateBlock], v[kMostStateBlock], largest_m = 0, largest_v = 0;
#pragma omp simd reduction(max : largest_m, largest_v)
  for (int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * c.scale;
    m[i] = c.first(first.value(begin + i, scale), gradient);
    v[i] = c.second(second.value(begin + i, sq_scale), gradient);
    p[i] = c.parameter(p[i], m[i], v[i]);
    largest_m = std::max(largest_m, std::abs(m[i]));
    largest_v = std::max(largest_v, v[i]);
  }
  keep_block(first, b, m, largest_m, count);
  keep_block(second, b, v, largest_v, count);
}

template <class T>
ZEA_WIDE_CLONES void update_blocks(const BlockwiseAdamwBlock<T>& run, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) update_block(run, b);
}

template <class T>
BlockwiseConstants<T> blockwise_constants(const AdamwUpdate& update) {
  const auto step = static_cast<double>(update.step);
  const auto of = [](double value) { return static_cast<T>(value); };
  return {.keep = of(1 - update.lr * update.weight_decay),
          .beta1 = of(update.beta1),
          .beta2 = of(update.beta2),
          .scale = of(update.gradient_scale),
          .step_size = of(update.lr / (1 - std::pow(update.beta1, step))),
          .root_correction = of(1 / std::sqrt(1 - std::pow(update.beta2, step))),
          .eps = of(update.eps)};
}

template <class T>
void run_blocks(const at::Tensor& parameter, const at::Tensor& gradient,
                const BlockwiseMoment& exp_avg, const BlockwiseMoment& exp_avg_sq,
                const AdamwUpdate& update) {
  const int64_t blocks = exp_avg.scales.numel(), block = parameter.numel() / blocks;
  const BlockwiseAdamwBlock<T> run{.parameters = elements<T>(parameter),
                                   .gradients = elements<T>(gradient),
                                   .first = blocks_of<T>(exp_avg, true),
                                   .second = blocks_of<T>(exp_avg_sq, false),
                                   .block = block,
                                   .constants = blockwise_constants<T>(update),
                                   .device_scale = update.device_scale};
  if (!parameter.is_cpu())
    return detail::launch_items(run, blocks, detail::num_packs(parameter, block),
                                detail::stream_of(parameter));
  ZEA_ASSERT(block <= kMostStateBlock && block * blocks == parameter.numel());
  detail::for_each_chunk(
      blocks, [&](int64_t, int64_t begin, int64_t end) { update_blocks(run, begin, end); },
      kChunkElements / block);
}

/// (blocks, elements of a block)
at::Tensor values_of(const BlockwiseMoment& moment, bool is_signed) {
  const at::Tensor parts =
      CodeTensors::of(is_signed, moment.scales).values.index_select(0, moment.codes.to(at::kLong));
  return parts.view({moment.scales.numel(), -1}) * moment.scales.unsqueeze(1);
}

/// Stores the values; if `may_change` is given and false, the moment stays as it is.
void keep_values(const BlockwiseMoment& moment, const at::Tensor& values, bool is_signed,
                 const at::Tensor& may_change) {
  at::Tensor scales = values.abs().amax(1);
  const at::Tensor parts = (values / scales.unsqueeze(1)).nan_to_num_(-1);
  at::Tensor codes = at::bucketize(parts, CodeTensors::of(is_signed, values).borders);
  if (!is_signed) codes = at::where(values > 0, codes.clamp_min(1), codes);
  codes = codes.flatten().to(at::kByte);
  if (may_change.defined()) {
    codes = at::where(may_change, codes, moment.codes);
    scales = at::where(may_change, scales, moment.scales);
  }
  moment.codes.copy_(codes);
  moment.scales.copy_(scales);
}

/// Whether a factor that lies on the device lets an update change anything; undefined: there is
/// none.
at::Tensor is_to_change(const double* device_scale, at::Device device) {
  if (device_scale == nullptr) return {};
  const at::Tensor scale = at::for_blob(const_cast<double*>(device_scale), {})
                               .options(at::TensorOptions(device).dtype(at::kDouble))
                               .target_device(device)
                               .make_tensor();
  return scale >= 0;
}

}  // namespace

const std::array<double, 256>& dynamic_codes(bool is_signed) {
  static const std::array<double, kCodes> kSigned = make_codes(true), kUnsigned = make_codes(false);
  return is_signed ? kSigned : kUnsigned;
}

void blockwise_adamw(at::Tensor parameter, const at::Tensor& gradient,
                     const BlockwiseMoment& exp_avg, const BlockwiseMoment& exp_avg_sq,
                     const AdamwUpdate& update) {
  ZEA_ASSERT(update.decoupled && parameter.numel() > 0);
  if (!detail::runs_kernels(parameter))
    return blockwise_adamw_reference(parameter, gradient, exp_avg, exp_avg_sq, update);
  if (parameter.scalar_type() == at::kDouble)
    run_blocks<double>(parameter, gradient, exp_avg, exp_avg_sq, update);
  else
    run_blocks<float>(parameter, gradient, exp_avg, exp_avg_sq, update);
}

// Works in runs, since every operation makes a tensor of its own.
void blockwise_adamw_reference(at::Tensor parameter, const at::Tensor& gradient,
                               const BlockwiseMoment& exp_avg, const BlockwiseMoment& exp_avg_sq,
                               const AdamwUpdate& update) {
  constexpr int64_t kMostBlocks = int64_t{1} << 14;
  const int64_t blocks = exp_avg.scales.numel(), block = parameter.numel() / blocks;
  const at::Tensor may_change = is_to_change(update.device_scale, parameter.device());
  for (int64_t begin = 0; begin < blocks; begin += kMostBlocks) {
    const int64_t count = std::min(kMostBlocks, blocks - begin);
    const auto elements = [&](const at::Tensor& all) {
      return all.narrow(0, begin * block, count * block);
    };
    const auto run = [&](const BlockwiseMoment& all) {
      return BlockwiseMoment{elements(all.codes), all.scales.narrow(0, begin, count)};
    };
    const at::Tensor m = values_of(run(exp_avg), true), v = values_of(run(exp_avg_sq), false);
    adamw(elements(parameter), elements(gradient), m.view(-1), v.view(-1), update);
    keep_values(run(exp_avg), m, true, may_change);
    keep_values(run(exp_avg_sq), v, false, may_change);
  }
}

}  // namespace zea
