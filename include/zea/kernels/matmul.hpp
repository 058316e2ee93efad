// SPDX-License-Identifier: Apache-2.0
// Products of matrices, by whichever of libtorch's two libraries is faster for them here: MKL,
// which at::mm takes for fp32, runs at half of oneDNN's speed on processors that are not Intel's.
#pragma once

#include <ATen/ATen.h>

namespace zea {

/// a (m, k) times b (k, n).
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

/// result (m, n) = a (m, k) times b (k, n).
void product_into(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b);

/// sum (m, n) += a (m, k) times b (k, n), all of one type.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

/// bias (n) + a (m, k) times b (k, n).
at::Tensor biased_product(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b);

}  // namespace zea
