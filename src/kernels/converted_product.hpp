// SPDX-License-Identifier: Apache-2.0
// Products of bf16 matrices by those of fp32, a tile at a time: for processors on which the library
// multiplies bf16 without vectors, at a tenth of fp32's speed. Sums are taken in fp32 and rounded
// once.
#pragma once

#include <ATen/core/Tensor.h>

namespace zea::detail {

/// Whether libtorch finds the vectors here that its ways to oneDNN ask for, of every type: those of
/// AVX512, if ONEDNN_MAX_CPU_ISA does not forbid them, or an ARM's for bf16.
bool library_has_vectors();

/// Whether products of bf16 are of this kind here: without these, or where ZEA_BF16_PAIRS is
/// "converted", unless they are of pairs (pair_matmul.hpp).
bool converts_products();

/// Whether that concerns these operands: bf16, on the host.
bool takes_converted_product(const at::Tensor& a, const at::Tensor& b);

/// The bf16 result (m, n) = a (m, k) b (k, n) + bias (n), rounded; `bias` may be undefined.
void converted_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& bias);

/// sum (m, n) += a b; the sum is bf16 or fp32.
void add_converted_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace zea::detail
