// SPDX-License-Identifier: Apache-2.0
// Products of matrices, by whatever is fastest for them here. Of fp32 one of libtorch's two
// libraries: MKL, which at::mm takes, runs at half of oneDNN's speed on processors that are not
// Intel's. Of bf16 oneDNN, or our own kernel where the processor has AVX512_BF16 and no AMX, or
// tiles that are converted to fp32 where it has no AVX512. Of few rows with a linear's weights, in
// any type, our own kernel that reads these once.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/kernel_sizes.hpp"

namespace zea {

/// a (m, k) times b (k, n).
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

/// result (m, n) = a (m, k) times b (k, n).
void product_into(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b);

/// sum (m, n) += a (m, k) times b (k, n); `sum` may be of a wider type.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

/// bias (n) + a (m, k) times b (k, n).
at::Tensor biased_product(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b);

/// What multiplies matrices of bf16 here; all of them, if their pairs are whole.
NarrowProducts narrow_products();

}  // namespace zea
