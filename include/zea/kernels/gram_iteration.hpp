// SPDX-License-Identifier: Apache-2.0
// What iterations on the rows of a matrix are made of that multiply it from the left by polynomials
// of its Gram matrix: Muon's. Operands of products are rounded, sums are not.
#pragma once

#include <memory>

#include "zea/kernels/symmetric_product.hpp"

namespace zea {

/// Of x (m, n), m <= n. What gram() and product() give, symmetric (m, m), is for this alone.
class GramIteration {
 public:
  virtual ~GramIteration() = default;

  virtual at::Tensor gram() = 0;  ///< x x^T
  /// scale a b + addends, all of one gram().
  virtual at::Tensor product(const at::Tensor& a, const at::Tensor& b, double scale,
                             const Addends& addends) = 0;
  /// x = square x + factor x, for a `square` that was made since the last gram().
  virtual void apply(const at::Tensor& square, double factor) = 0;
  virtual at::Tensor x() const = 0;
};

/// x is fp32 or fp64 and dense along n; `operands` is its type, or bf16.
std::unique_ptr<GramIteration> gram_iteration(const at::Tensor& x, at::ScalarType operands);

}  // namespace zea
