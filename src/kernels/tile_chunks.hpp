// SPDX-License-Identifier: Apache-2.0
// Products of tiles whose rows are shared out to threads.
#pragma once

#include "launch.hpp"
#include "tile_product.hpp"

namespace zea::detail {

/// Rows that a thread takes of a product.
constexpr int64_t kChunkRows = 32;

enum class Part { All, UpperHalf };

/// result (rows, columns in whole vectors) = scale left right + addends, so many rows at once, for
/// which the left matrix goes on by `step`.
template <class Terms>
void multiply_chunks(const TileProduct<Terms>& whole, Part part, int64_t rows, int64_t step) {
  for_each_chunk(
      whole.rows,
      [&](int64_t, int64_t begin, int64_t end) {
        TileProduct<Terms> chunk = whole;
        chunk.left += begin / rows * step;
        chunk.sum += begin * whole.sum_stride;
        for (auto& addend : chunk.addends)
          if (addend.first != nullptr) addend.first += begin * addend.stride;
        chunk.rows = end - begin;
        if (part == Part::UpperHalf) chunk.seen = {Diagonal::Result, false, -begin};
        multiply(chunk);
      },
      rows);
}

template <class Terms>
void multiply_chunks(const TileProduct<Terms>& whole, Part part) {
  multiply_chunks(whole, part, kChunkRows, kChunkRows * whole.left_row);
}

}  // namespace zea::detail
