// SPDX-License-Identifier: Apache-2.0
// GEMMs by the fastest backend on this processor. fp32 uses one of libtorch's two libraries: MKL,
// behind at::mm, runs at half of oneDNN's speed on processors that are not Intel's. bf16 uses
// oneDNN, or our own kernel if the processor has AVX512_BF16 and no AMX, or tiles that are
// converted to fp32 if it has no AVX512. A few rows times a linear's weights (skinny GEMMs), in any
// type, use a kernel that reads the weights once.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/kernel_sizes.hpp"

namespace zea {

/// a (m, k) times b (k, n).
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

/// a (m, k) times b (k, n). The product of bf16 matrices is fp32, without rounding to bf16.
at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b);

/// result (m, n) = a (m, k) times b (k, n).
void product_into(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b);

/// results (i, m, n) = a (i, m, k), each matrix times b (k, n). Both may be strided.
void products_into(const at::Tensor& results, const at::Tensor& a, const at::Tensor& b);

/// product_into() on the calling thread alone, while other threads multiply other matrices; for
/// weights that are not in its caches.
void product_on_thread(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b);

/// sum (m, n) = beta sum + a (m, k) times b (k, n); `sum` may be of a wider type. With beta = 0 its
/// old values are ignored, even NaN.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, double beta = 1);

/// bias (n) + a (m, k) times b (k, n).
at::Tensor biased_product(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b);

/// Returns the bf16 GEMM backend of this processor, for matrices whose pairs are whole.
Bf16GemmBackend bf16_gemm_backend();

// Products of small matrices whose operands are rounded and whose sums are not, half of them where
// the result is known to be symmetric: what Muon's iteration is made of.

/// A term that is added to a product (m, n): factor times a matrix of its shape.
struct Addend {
  at::Tensor matrix;
  double factor = 1;
};
using Addends = std::vector<Addend>;  ///< two at most

/// Returns a (m, k) times b (k, n) + addends, in fp32 or fp64 as `a` and `b` are. If `operands` is
/// bf16, they are rounded to it, and sums are still fp32 (on a processor with AMX, whose library
/// gives no others, the product is rounded before it is added).
at::Tensor rounded_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands,
                           const Addends& addends = {});

/// Returns scale a b + addends for a symmetric result (m, m) and symmetric addends: computes the
/// part above the diagonal and mirrors it.
at::Tensor symmetric_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType operands,
                             double scale = 1, const Addends& addends = {});

}  // namespace zea
