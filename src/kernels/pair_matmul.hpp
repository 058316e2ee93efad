// SPDX-License-Identifier: Apache-2.0
// Products of bf16 matrices by the pair products of tiles: both are packed once, and a block of
// sums stays in registers along all of the inner dim. oneDNN compiles a kernel for every new shape,
// and the number of tokens is new in every step; and it cannot add to fp32 sums.
#pragma once

#include <ATen/core/Tensor.h>

namespace zea::detail {

/// What this processor multiplies by pairs.
enum class PairUse {
  None,       ///< it has no AVX512_BF16
  Attention,  ///< attention alone: the processor has AMX, too, by which the library's GEMMs are
              ///< faster
  All
};
/// Less than that if ZEA_BF16_PAIRS is "none", "attention" or "converted" (none, and products by
/// fp32): tests find out on one processor what happens on others.
PairUse pair_use();

/// Whether all products are of pairs here (pair_use()), and the matrices are such that pair_product
/// takes them: a (m, k) and b (k, n) are dense along one of their dims, the result (m, n) along n,
/// and pairs along k are whole. It is fp32 for add_pair_product.
bool takes_pair_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b);

/// The bf16 result = a b + bias (n), rounded; `bias` may be undefined.
void pair_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
                  const at::Tensor& bias);

/// The fp32 sum += a b.
void add_pair_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace zea::detail
