// SPDX-License-Identifier: Apache-2.0
#include "model/flash_attention.hpp"

#include <limits>
#include <optional>

#include "core/error.hpp"

namespace zea::detail {
namespace {

using at::Tensor;

/// The device's kernels want the rows of a log-sum-exp in multiples of this, and read heads by so
/// many bytes.
constexpr int64_t kLseRows = 32, kHeadBytes = 16;

std::optional<Tensor> optional_mask(const FlashInputs& in) {
  return in.mask.defined() ? std::optional<Tensor>(in.mask) : std::nullopt;
}

double scale_of(const FlashInputs& in) {
  ZEA_ASSERT(in.scores.softcap == 0);
  return in.scores.scale_of(in.q.size(3));
}

/// What `count` lacks to a multiple of `unit`.
int64_t missing_to(int64_t unit, int64_t count) {
  return (unit - count % unit) % unit;
}

/// With zeros behind each head up to whole kHeadBytes.
Tensor whole_heads(const Tensor& x) {
  const int64_t missing = missing_to(kHeadBytes / x.element_size(), x.size(3));
  return missing == 0 ? x : at::constant_pad_nd(x, {0, missing});
}

Tensor padded_lse(const Tensor& lse) {
  return at::constant_pad_nd(lse, {0, missing_to(kLseRows, lse.size(2))},
                             std::numeric_limits<double>::infinity())
      .contiguous();
}

}  // namespace

FlashOutputs flash_forward(const FlashInputs& in) {
  if (in.q.is_cpu()) {
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        in.q, in.k, in.v, 0.0, in.causal, optional_mask(in), scale_of(in));
    return {out, lse};
  }
  const auto result = at::_scaled_dot_product_efficient_attention(
      whole_heads(in.q), whole_heads(in.k), whole_heads(in.v), optional_mask(in), true, 0.0,
      in.causal, scale_of(in));
  return {std::get<0>(result).narrow(3, 0, in.q.size(3)),
          std::get<1>(result).narrow(2, 0, in.q.size(2))};
}

std::array<Tensor, 3> flash_backward(const Tensor& dout, const FlashInputs& in,
                                     const FlashOutputs& outputs) {
  if (in.q.is_cpu()) {
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        dout, in.q, in.k, in.v, outputs.out, outputs.lse, 0.0, in.causal, optional_mask(in),
        scale_of(in));
    return {dq, dk, dv};
  }
  // In narrow types the kernel takes `out` to lie as its forward writes it, (batch, rows, heads,
  // dim).
  const Tensor out = whole_heads(outputs.out).transpose(1, 2).contiguous().transpose(1, 2);
  // Dropout is off, so the kernel reads neither seed nor offset.
  const Tensor unused = at::zeros({}, in.q.options().dtype(at::kLong));
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      whole_heads(dout), whole_heads(in.q), whole_heads(in.k), whole_heads(in.v), in.mask, out,
      padded_lse(outputs.lse), unused, unused, 0.0, {true, true, true, false}, in.causal,
      scale_of(in));
  const int64_t dim = in.q.size(3);
  return {dq.narrow(3, 0, dim), dk.narrow(3, 0, dim), dv.narrow(3, 0, dim)};
}

}  // namespace zea::detail
