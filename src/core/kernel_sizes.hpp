// SPDX-License-Identifier: Apache-2.0
// Sizes at which kernels and functions change what they allocate: code and the plan of memory read
// them here, so that neither can change alone.
#pragma once

#include <algorithm>
#include <cstdint>

namespace zea {

/// Elements that a kernel takes at once: few enough to stay in a core's cache through a pass, and
/// the grain of deterministic sums.
inline constexpr int64_t kChunkElements = 4096;

/// Elements of a matrix that stays in a core's cache while one thread multiplies by it.
inline constexpr int64_t kCachedElements = int64_t{1} << 18;

/// Rows of so many elements that a kernel takes at once.
constexpr int64_t rows_per_chunk(int64_t row_elements) {
  return std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, row_elements));
}

/// Rows of so many elements of which one sum is made, where a parameter's gradient is a sum over
/// rows: enough of them that the sums are few.
constexpr int64_t rows_per_sum(int64_t row_elements) {
  return std::max<int64_t>(32, rows_per_chunk(row_elements));
}

/// Limits of the number of chunks into which a tensor-parallel linear splits its rows.
struct RowChunks {
  int64_t most = 1;
  int64_t least_rows = 1;   ///< of a chunk
  int64_t least_width = 0;  ///< narrower rows, such as those of adapters, are sent at once

  constexpr int of(int64_t rows, int64_t width) const {
    if (width < least_width) return 1;
    return static_cast<int>(std::clamp<int64_t>(rows / least_rows, 1, most));
  }
};

/// Queries that attention with relative positions takes at once, with the keys around them.
inline constexpr int64_t kRelativeBlock = 32;

/// The bf16 elements of 16 bytes: the grouped GEMM of a device takes rows of whole packs.
inline constexpr int64_t kPackOfBf16 = 8;

/// The most elements of an optimizer's state that share a scale.
inline constexpr int64_t kMostStateBlock = 128;

/// Bounds of logits that exist at once. A device takes some launches for each tile, which a tile
/// must be large to be worth.
struct LogitBounds {
  int64_t rows, columns;
  int64_t tile;  ///< elements of a tile
  int64_t kept;  ///< elements that forward keeps for backward
};

/// 8 MiB of fp32 a tile; 32 MiB of bf16 or 64 MiB of fp32 that are kept.
inline constexpr LogitBounds kHostLogits{1024, 8192, int64_t{2} << 20, int64_t{16} << 20};

/// 256 MiB of bf16 a tile, 512 MiB that are kept; twice that of fp32.
inline constexpr LogitBounds kDeviceLogits{8192, 32768, int64_t{128} << 20, int64_t{256} << 20};

constexpr const LogitBounds& logit_bounds(bool on_device) {
  return on_device ? kDeviceLogits : kHostLogits;
}

/// The logits that exist at once: of so many rows, and columns of the vocabulary. Many rows, so
/// that a weight that is read, and a gradient that is written, serve many products.
struct LogitTile {
  constexpr LogitTile(int64_t all_rows, int64_t vocabulary, const LogitBounds& bounds)
      : rows(std::clamp<int64_t>(all_rows, 1, bounds.rows)),
        columns(std::min({vocabulary, bounds.columns, bounds.tile / rows})) {}

  int64_t rows, columns;
};

/// Whether forward keeps all logits for backward, which spares a product of four.
constexpr bool keeps_logits(int64_t rows, int64_t vocabulary, const LogitBounds& bounds) {
  return rows * vocabulary <= bounds.kept;
}

/// The bf16 GEMM backend of a host, which its processor decides: so kernels tell, and
/// nothing that ranks must agree on depends on it.
enum class Bf16GemmBackend {
  Library,      ///< libtorch's; sums of fp32 are added a product that was made first
  LibrarySums,  ///< the same, by a processor without bf16: all of a result is made in fp32 first
  Pairs,        ///< our own: operands are packed, and what they make is added to sums as it is
  Converted,    ///< of fp32, a tile at a time, by a processor whose library has no vectors for bf16
};

/// The most rows, columns and inner elements of a tile that is converted: 1 MiB of fp32.
inline constexpr int64_t kConvertedTile = 512;

/// Elements of 4 bytes that a product by converted tiles holds: tiles of both operands, and of the
/// sums where these are not added to in place.
constexpr int64_t converted_product_elements(int64_t rows, int64_t inner, int64_t columns,
                                             bool holds_sums) {
  const int64_t m = std::min(rows, kConvertedTile), k = std::min(inner, kConvertedTile),
                n = std::min(columns, kConvertedTile);
  return m * k + k * n + (holds_sums ? m * n : 0);
}

/// Tokens of a chunk of the gated delta rule; and those between the states that forward keeps for
/// backward, which makes the others again.
inline constexpr int64_t kDeltaChunk = 64, kDeltaStateTokens = 8 * kDeltaChunk;

/// Tokens whose chunks a device computes at once, where no sample takes more.
inline constexpr int64_t kDeltaBatchTokens = 4 * kDeltaStateTokens;

/// Heads that the library's attention over rows of segments takes, of bf16 and on devices.
constexpr bool takes_ragged_heads(int64_t dim) {
  return dim % 8 == 0 && dim <= 256;
}

/// Pairs of neighbours along the inner dim, in whole vectors along the outer one.
constexpr int64_t packed_pairs(int64_t outer, int64_t inner) {
  return (inner + 1) / 2 * ((outer + 15) / 16 * 16);
}

/// Elements of 4 bytes that our own product of (rows, inner) and (inner, columns) packs: the right
/// matrix, the left one where its rows do not lie along `inner`, and a bias.
constexpr int64_t pair_product_elements(int64_t rows, int64_t inner, int64_t columns,
                                        bool packs_left) {
  return packed_pairs(columns, inner) + (packs_left ? packed_pairs(rows, inner) : 0) +
         packed_pairs(columns, 1);
}

}  // namespace zea
