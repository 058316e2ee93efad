// SPDX-License-Identifier: Apache-2.0
// The attention that libtorch has for devices alone, with the shapes that it has there: logarithms
// of sums come and go in rows padded to 32.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>

#include "device/torch_device.hpp"

namespace zea::testing {
namespace {

constexpr int64_t kRows = 32;

double scale_of(const at::Tensor& q, std::optional<double> scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3))));
}

/// (batch, heads, queries, keys), biased and masked.
at::Tensor scores_of(const at::Tensor& q, const at::Tensor& k,
                     const std::optional<at::Tensor>& bias, bool is_causal, double scale) {
  at::Tensor scores = at::matmul(q * scale, k.transpose(2, 3));
  if (bias && bias->defined()) scores = scores + *bias;
  if (!is_causal) return scores;
  const at::Tensor seen = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).tril();
  return scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const std::optional<at::Tensor>& bias, bool, double dropout, bool is_causal,
    std::optional<double> scale) {
  TORCH_CHECK(dropout == 0);
  const OneLaunch one("attention");
  const at::Tensor scores = scores_of(q, k, bias, is_causal, scale_of(q, scale));
  const at::Tensor lse = at::logsumexp(scores, {-1});
  const at::Tensor out = at::matmul(at::exp(scores - lse.unsqueeze(-1)), v);
  const int64_t missing = (kRows - q.size(2) % kRows) % kRows;
  const at::Tensor unused = at::zeros({}, q.options().dtype(at::kLong));
  return {out, at::constant_pad_nd(lse, {0, missing}, std::numeric_limits<double>::infinity()),
          unused, unused};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& bias, const at::Tensor& out, const at::Tensor& lse, const at::Tensor&,
    const at::Tensor&, double, std::array<bool, 4>, bool is_causal, std::optional<double> scale) {
  const OneLaunch one("attention backward");
  TORCH_CHECK(lse.size(2) % kRows == 0, "logarithms of sums in rows of ", lse.size(2));
  const double by = scale_of(q, scale);
  const at::Tensor scores = scores_of(q, k, bias, is_causal, by);
  const at::Tensor p = at::exp(scores - lse.narrow(2, 0, q.size(2)).unsqueeze(-1));
  const at::Tensor delta = (dout * out).sum(-1, true);
  const at::Tensor ds = p * (at::matmul(dout, v.transpose(2, 3)) - delta);
  return {at::matmul(ds, k) * by, at::matmul(ds.transpose(2, 3), q) * by,
          at::matmul(p.transpose(2, 3), dout), at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_efficient_attention", &forward);
  m.impl("_scaled_dot_product_efficient_attention_backward", &backward);
}

}  // namespace
}  // namespace zea::testing
