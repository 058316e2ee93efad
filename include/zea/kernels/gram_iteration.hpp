// SPDX-License-Identifier: Apache-2.0
// What iterations on a matrix are made of that multiply it by polynomials of the Gram matrix of its
// short side: Muon's. Operands of products are rounded, sums are not.
#pragma once

#include <memory>

#include "zea/kernels/symmetric_product.hpp"

namespace zea {

/// Of x (m, n). What gram() and product() give, symmetric (k, k) with the lesser of m and n, is for
/// this alone.
class GramIteration {
 public:
  virtual ~GramIteration() = default;

  virtual at::Tensor gram() = 0;  ///< x x^T where m <= n, else x^T x
  /// scale a b + addends, all of one gram().
  virtual at::Tensor product(const at::Tensor& a, const at::Tensor& b, double scale,
                             const Addends& addends) = 0;
  /// x = scale (square x + factor x) where m <= n, else scale (x square + factor x), for a `square`
  /// that was made since the last gram().
  virtual void apply(const at::Tensor& square, double factor, double scale) = 0;
  virtual at::Tensor x() const = 0;
};

/// Of x / divisor; x is fp32 or fp64 and its rows dense, `divisor` one number, and `operands` x's
/// type, or bf16. It may keep what becomes of x where x lies; x() is the same tensor then.
std::unique_ptr<GramIteration> gram_iteration(const at::Tensor& x, const at::Tensor& divisor,
                                              at::ScalarType operands);

}  // namespace zea
