// SPDX-License-Identifier: Apache-2.0
// Products of a few rows with a matrix, as decoding makes them, a token of each sample at a time:
// what they cost is reading the matrix, which is therefore read once, in the order of memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace zea::detail {

/// Whether a (m, k) has few rows, and those of a and the columns of b (k, n) lie along k, as a
/// linear's weights do.
bool takes_few_rows(const at::Tensor& a, const at::Tensor& b);

/// The result (m, n) = a b + bias (n), rounded; of one type. `bias` may be undefined.
void few_row_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
                     const at::Tensor& bias);

}  // namespace zea::detail
