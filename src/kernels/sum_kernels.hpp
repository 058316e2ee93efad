// SPDX-License-Identifier: Apache-2.0
// Sums into gradients, which are wider than what is added to them: libtorch converts all of it
// first, these while they add. On the host; elsewhere, and for types that they do not know, by
// libtorch's operations, which is what functions named `..._reference` do.
#pragma once

#include <ATen/core/Tensor.h>

namespace zea {

/// sum += x, of one shape; sum may be of a wider type.
void add_converted(const at::Tensor& sum, const at::Tensor& x);

/// sum (columns) += x (rows, columns) summed over rows, in sum's type; the same with any number of
/// threads.
void add_column_sums(const at::Tensor& sum, const at::Tensor& x);

void add_converted_reference(const at::Tensor& sum, const at::Tensor& x);
void add_column_sums_reference(const at::Tensor& sum, const at::Tensor& x);

}  // namespace zea
