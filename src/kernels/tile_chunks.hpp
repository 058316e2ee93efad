// SPDX-License-Identifier: Apache-2.0
// Products of tiles whose rows are shared out to threads.
#pragma once

#include "kernels/launch.hpp"
#include "kernels/tile_product.hpp"

namespace zea::detail {

/// Rows that a thread takes of a product.
constexpr int64_t kChunkRows = 32;

enum class Part { All, UpperHalf };

/// Makes result (rows, columns in whole vectors) = scale left right + addends, kChunkRows rows a
/// task.
template <class Terms>
void multiply_chunks(const TileProduct<Terms>& whole, Part part) {
  for_each_chunk(
      whole.rows,
      [&](int64_t, int64_t begin, int64_t end) {
        TileProduct<Terms> chunk = whole;
        chunk.left += begin * whole.left_row;
        chunk.sum += begin * whole.sum_stride;
        for (auto& addend : chunk.addends)
          if (addend.first != nullptr) addend.first += begin * addend.stride;
        chunk.rows = end - begin;
        if (part == Part::UpperHalf) chunk.seen = {Diagonal::Result, false, -begin};
        multiply(chunk);
      },
      kChunkRows);
}

}  // namespace zea::detail
