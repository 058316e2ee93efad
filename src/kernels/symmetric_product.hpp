// SPDX-License-Identifier: Apache-2.0
// Products of small matrices whose operands are rounded and whose sums are not, half of them where
// the result is known to be symmetric: what Muon's iteration is made of.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace zea {

/// What is added to a product (m, n): factor times a matrix like it.
struct Addend {
  at::Tensor matrix;
  double factor = 1;
};
using Addends = std::vector<Addend>;  ///< two at most

/// a (m, k) times b (k, n) + addends, of fp32 or fp64 as `a` and `b` are. Where `operands` is bf16
/// these are rounded to it, and sums are of fp32 all the same (on a processor with AMX, whose
/// library gives no others, the product is rounded before it is added).
at::Tensor rounded_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands,
                           const Addends& addends = {});

/// scale a b + addends, which is symmetric (m, m), as are the addends: what stands above the
/// diagonal is multiplied, and put below it, too.
at::Tensor symmetric_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands,
                             double scale = 1, const Addends& addends = {});

}  // namespace zea
