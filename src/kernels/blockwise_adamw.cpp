// SPDX-License-Identifier: Apache-2.0
#include "zea/kernels/blockwise_adamw.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "elements.hpp"
#include "launch.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

constexpr int kCodes = 256;
constexpr int64_t kMostBlock = 128;

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

/// Codes and the borders between neighbours, in the type of an update.
template <class T>
struct CodeTable {
  explicit CodeTable(bool is_signed) {
    const std::array<double, kCodes>& codes = dynamic_codes(is_signed);
    for (int i = 0; i < kCodes; ++i) values[i] = static_cast<T>(codes[i]);
    for (int i = 0; i + 1 < kCodes; ++i) borders[i] = static_cast<T>((codes[i] + codes[i + 1]) / 2);
  }

  T values[kCodes];
  T borders[kCodes - 1];
};

template <class T>
const CodeTable<T>& table(bool is_signed) {
  static const CodeTable<T> kSigned(true), kUnsigned(false);
  return is_signed ? kSigned : kUnsigned;
}

/// The number of borders below `part`; branches would be as good as random, and no vectors. A step
/// of a search that has come to `code`, and those after it.
template <int step, class T>
ZEA_FUNCTION int nearest_code(const T* borders, T part, int code = 0) {
  if constexpr (step == 0)
    return code;
  else
    return nearest_code<step / 2>(borders, part,
                                  code + step * static_cast<int>(part > borders[code + step - 1]));
}

/// Of one block.
template <class T>
struct MomentBlock {
  const CodeTable<T>& table;
  uint8_t* codes;
  T* scale;
  int least_code;  ///< of what is not 0

  ZEA_FUNCTION T value(int64_t i) const { return table.values[codes[i]] * *scale; }

  ZEA_FUNCTION void keep(const T* values, T largest, int64_t count) const {
    *scale = largest;
    if (!(largest > 0)) {
      std::fill_n(codes, count, uint8_t{0});
      return;
    }
    const int least = least_code;
    const T* const borders = table.borders;
    uint8_t* const to = codes;
    int found[kMostBlock];  // apart from the codes, whose narrow type would make vectors of few
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const int nearest = nearest_code<kCodes / 2>(borders, values[i] / largest);
      found[i] = values[i] != 0 && nearest < least ? least : nearest;
    }
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(found[i]);
  }
};

template <class T>
struct BlockwiseConstants {
  T keep, beta1, beta2, scale, step_size, root_correction, eps;
};

template <class T>
ZEA_FUNCTION void update_block(T* p, const T* g, const MomentBlock<T>& first,
                               const MomentBlock<T>& second, const BlockwiseConstants<T>& c,
                               int64_t count) {
  T m[kMostBlock], v[kMostBlock], largest_m = 0, largest_v = 0;
#pragma omp simd reduction(max : largest_m, largest_v)
  for (int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * c.scale;
    m[i] = c.beta1 * first.value(i) + (1 - c.beta1) * gradient;
    v[i] = c.beta2 * second.value(i) + (1 - c.beta2) * gradient * gradient;
    p[i] = p[i] * c.keep - c.step_size * m[i] / (std::sqrt(v[i]) * c.root_correction + c.eps);
    largest_m = std::max(largest_m, std::abs(m[i]));
    largest_v = std::max(largest_v, v[i]);
  }
  first.keep(m, largest_m, count);
  second.keep(v, largest_v, count);
}

template <class T>
struct BlockwiseRun {
  T* parameters;
  const T* gradients;
  uint8_t *codes, *sq_codes;
  T *scales, *sq_scales;
  int64_t block;
  BlockwiseConstants<T> constants;
};

template <class T>
ZEA_WIDE_CLONES void update_blocks(const BlockwiseRun<T>& run, int64_t begin, int64_t end) {
  const CodeTable<T>&with_sign = table<T>(true), &without = table<T>(false);
  for (int64_t b = begin; b < end; ++b) {
    const int64_t i = b * run.block;
    update_block(run.parameters + i, run.gradients + i,
                 MomentBlock<T>{with_sign, run.codes + i, run.scales + b, 0},
                 MomentBlock<T>{without, run.sq_codes + i, run.sq_scales + b, 1}, run.constants,
                 run.block);
  }
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
  ZEA_ASSERT(block <= kMostBlock && block * blocks == parameter.numel());
  const BlockwiseRun<T> run{.parameters = detail::elements<T>(parameter),
                            .gradients = detail::elements<T>(gradient),
                            .codes = detail::elements<uint8_t>(exp_avg.codes),
                            .sq_codes = detail::elements<uint8_t>(exp_avg_sq.codes),
                            .scales = detail::elements<T>(exp_avg.scales),
                            .sq_scales = detail::elements<T>(exp_avg_sq.scales),
                            .block = block,
                            .constants = blockwise_constants<T>(update)};
  detail::for_each_chunk(
      blocks, [&](int64_t, int64_t begin, int64_t end) { update_blocks(run, begin, end); },
      kChunkElements / block);
}

/// Codes and borders as CodeTable's, where `like` is and of its type: copied there once, since the
/// host would wait for each copy.
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

/// (blocks, elements of a block)
at::Tensor values_of(const BlockwiseMoment& moment, bool is_signed) {
  const at::Tensor parts =
      CodeTensors::of(is_signed, moment.scales).values.index_select(0, moment.codes.to(at::kLong));
  return parts.view({moment.scales.numel(), -1}) * moment.scales.unsqueeze(1);
}

/// Where `may_change`, if there is one, is false, the moment stays as it is.
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
at::Tensor is_to_change(const double* scale_there, at::Device device) {
  if (scale_there == nullptr) return {};
  const at::Tensor scale = at::for_blob(const_cast<double*>(scale_there), {})
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
  if (!parameter.is_cpu())
    return blockwise_adamw_reference(parameter, gradient, exp_avg, exp_avg_sq, update);
  if (parameter.scalar_type() == at::kDouble)
    run_blocks<double>(parameter, gradient, exp_avg, exp_avg_sq, update);
  else
    run_blocks<float>(parameter, gradient, exp_avg, exp_avg_sq, update);
}

// In runs, as every operation makes a tensor of its own.
void blockwise_adamw_reference(at::Tensor parameter, const at::Tensor& gradient,
                               const BlockwiseMoment& exp_avg, const BlockwiseMoment& exp_avg_sq,
                               const AdamwUpdate& update) {
  constexpr int64_t kMostBlocks = int64_t{1} << 14;
  const int64_t blocks = exp_avg.scales.numel(), block = parameter.numel() / blocks;
  const at::Tensor may_change = is_to_change(update.scale_there, parameter.device());
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
