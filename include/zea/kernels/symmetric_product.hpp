// SPDX-License-Identifier: Apache-2.0
// Products of small matrices whose operands are rounded and whose sums are not, half of them where
// the result is known to be symmetric: what Muon's iteration is made of.
#pragma once

#include <ATen/ATen.h>

namespace zea {

/// What a product is added to: factor sum + a b.
struct Addend {
  at::Tensor sum;  ///< (m, n), of the operands' type; undefined: nothing
  double factor = 0;
};

/// addend + a (m, k) times b (k, n), of fp32 or fp64 as `a` and `b` are. Where `operands` is bf16
/// these are rounded to it, and sums are of fp32 all the same (on a processor with AMX, whose
/// library gives no others, the product is rounded before it is added).
at::Tensor rounded_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands,
                           const Addend& addend = {});

/// addend + scale a b, which is symmetric (m, m), as is the addend: what stands above the diagonal
/// is multiplied, and put below it, too.
at::Tensor symmetric_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands,
                             double scale = 1, const Addend& addend = {});

}  // namespace zea
