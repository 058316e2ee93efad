// SPDX-License-Identifier: Apache-2.0
// GEMMs of the host beside the libraries': by pairs of bf16, by tiles that are converted to fp32,
// of few rows (skinny GEMMs), and of some dozens (tile GEMMs). matmul.cpp chooses among them.
#pragma once

#include <ATen/core/Tensor.h>

namespace zea::detail {

/// The uses of this processor's instructions for pairs of bf16.
enum class PairUse {
  None,       ///< it has no AVX512_BF16
  Attention,  ///< attention alone: the processor has AMX, too, by which the library's GEMMs are
              ///< faster
  All
};
/// Returns the uses of pairs here. ZEA_BF16_PAIRS = "none", "attention" or "converted" (none, and
/// bf16 GEMMs in fp32) allows less: tests show on one processor what happens on others.
PairUse pair_use();

/// Returns whether GEMMs use pairs here (pair_use()) and pair_product takes these matrices: a (m,
/// k) and b (k, n) are dense along one of their dims, the result (m, n) along n, and pairs along k
/// are whole. The result is fp32 for add_pair_product.
bool takes_pair_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b);

/// The bf16 result = a b + bias (n), rounded; `bias` may be undefined.
void pair_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
                  const at::Tensor& bias);

/// The fp32 sum += a b.
void add_pair_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

// Skinny GEMMs: a few rows times a matrix, as in decoding, one token of each sample at a time.
// Reading the matrix dominates, so it is read once, in the order of memory.

/// With more of them the libraries' kernels, or tile GEMMs, are faster.
constexpr int64_t kFewRows = 16;

/// Returns whether a (m, k) has few rows, and rows of a and columns of b (k, n) lie along k, as a
/// linear's weights do.
bool takes_skinny_gemm(const at::Tensor& a, const at::Tensor& b);

/// The result (m, n) = a b + bias (n), rounded; of one type. `bias` may be undefined.
void skinny_gemm(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& bias);

// Tile GEMMs: some dozens of rows times a large weight, on one thread. The weight is read once,
// during the multiplication; libraries first read it to pack it.

/// Returns whether processor, types and sizes are those for which tile_gemm() is faster than the
/// library: AVX-512, fp32, k and n multiples of the vector width.
bool takes_tile_gemm(const at::Tensor& a, const at::Tensor& b);

/// The fp32 result (m, n) = a b.
void tile_gemm(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b);

// bf16 GEMMs by fp32 GEMMs, a tile at a time: for processors on which the library multiplies bf16
// without vectors, at a tenth of fp32's speed. Sums are taken in fp32 and rounded once.

/// Returns whether libtorch finds the vector instructions here that it needs to call oneDNN for any
/// type: AVX512, if ONEDNN_MAX_CPU_ISA does not forbid it, or an ARM's for bf16.
bool library_has_vectors();

/// Returns whether bf16 GEMMs are converted here: without those instructions, or if ZEA_BF16_PAIRS
/// is "converted", unless they use pairs.
bool converts_products();

/// Returns whether converted_product() takes these operands: bf16, on the host.
bool takes_converted_product(const at::Tensor& a, const at::Tensor& b);

/// The bf16 result (m, n) = a (m, k) b (k, n) + bias (n), rounded; `bias` may be undefined.
void converted_product(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& bias);

/// sum (m, n) += a b; the sum is bf16 or fp32.
void add_converted_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

}  // namespace zea::detail
