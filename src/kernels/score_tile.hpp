// SPDX-License-Identifier: Apache-2.0
// Scores of some keys (rows) and a tile's queries (lanes): what is seen of them, and the softmax
// over keys, which goes down the rows and so never across lanes.
#pragma once

#include "attention_tiles.hpp"
#include "tile_product.hpp"

namespace zea::detail {

inline constexpr int64_t kTileKeys = 128;

/// Less than any score: exp of it is taken as zero.
template <class W>
inline constexpr W kHidden = W(-1e30);

/// Which lanes of a score tile are seen, by row.
struct SeenLanes {
  /// Keys [begin, begin + rows) of a piece, in whole vectors of `vector` lanes.
  SeenLanes(const TilePiece& piece, int64_t begin, int64_t rows, int64_t vector)
      : rows(rows),
        first(piece.first),
        end(piece.end),
        begin_lane(piece.first / vector * vector),
        end_lane(round_to(piece.end, vector)),
        offset(piece.offset - begin),
        is_diagonal(piece.causal && rows - 1 > piece.first + offset),
        vector(vector) {}

  int64_t first_seen(int64_t row) const {
    return is_diagonal ? std::clamp(row - offset, first, end) : first;
  }
  /// The vector that holds it.
  int64_t first_vector(int64_t row) const { return first_seen(row) / vector * vector; }
  int64_t lanes() const { return end_lane - begin_lane; }
  Diagonal part(Diagonal of) const { return is_diagonal ? of : Diagonal::None; }

  int64_t rows, first, end;      ///< [first, end): lanes of the piece
  int64_t begin_lane, end_lane;  ///< these in whole vectors
  int64_t offset;
  bool is_diagonal;
  int64_t vector;
};

template <class W>
struct ScoreTile {
  W* data;
  int64_t stride;
  SeenLanes seen;

  W* row(int64_t i) const { return data + i * stride; }
};

/// Sets what is computed and not seen.
template <class W>
void hide(const ScoreTile<W>& scores) {
  const SeenLanes& seen = scores.seen;
  for (int64_t i = 0; i < seen.rows; ++i) {
    W* const row = scores.row(i);
    for (int64_t l = seen.first_vector(i); l < seen.first_seen(i); ++l) row[l] = kHidden<W>;
    for (int64_t l = seen.end; l < seen.end_lane; ++l) row[l] = kHidden<W>;
  }
}

/// largest[lane] = max(largest[lane], scores), and factor[lane] = exp(old - new).
template <class W>
ZEA_WIDE_CLONES void take_largest(const ScoreTile<W>& scores, W* __restrict largest,
                                  W* __restrict factor) {
  const SeenLanes& seen = scores.seen;
  for (int64_t l = seen.begin_lane; l < seen.end_lane; ++l) factor[l] = largest[l];
  for (int64_t i = 0; i < seen.rows; ++i) {
    const W* __restrict row = scores.row(i);
    for (int64_t l = seen.first_vector(i); l < seen.end_lane; ++l)
      largest[l] = row[l] > largest[l] ? row[l] : largest[l];
  }
  for (int64_t l = seen.begin_lane; l < seen.end_lane; ++l)
    factor[l] = exponential(factor[l] - largest[l]);
}

template <class W>
[[gnu::always_inline]] inline W weight(W score, W subtracted) {
  return score <= kHidden<W> ? W(0) : exponential(score - subtracted);
}

/// scores = exp(scores - largest), whose sums are added to `sum`.
template <class W>
ZEA_WIDE_CLONES void exponentiate(const ScoreTile<W>& scores, const W* __restrict largest,
                                  W* __restrict sum) {
  const SeenLanes& seen = scores.seen;
  for (int64_t i = 0; i < seen.rows; ++i) {
    W* __restrict row = scores.row(i);
    const int64_t first = seen.first_vector(i);
    for (int64_t l = seen.begin_lane; l < first; ++l) row[l] = 0;
#pragma omp simd
    for (int64_t l = first; l < seen.end_lane; ++l) {
      row[l] = weight(row[l], largest[l]);
      sum[l] += row[l];
    }
  }
}

/// scores = p = exp(scores - lse), and gradients = p (gradients - subtracted).
template <class W>
ZEA_WIDE_CLONES void score_gradients(const ScoreTile<W>& scores, W* gradients,
                                     const W* __restrict lse, const W* __restrict subtracted) {
  const SeenLanes& seen = scores.seen;
  for (int64_t i = 0; i < seen.rows; ++i) {
    W* __restrict row = scores.row(i);
    W* __restrict gradient = gradients + i * scores.stride;
    const int64_t first = seen.first_vector(i);
    for (int64_t l = seen.begin_lane; l < first; ++l) row[l] = gradient[l] = 0;
#pragma omp simd
    for (int64_t l = first; l < seen.end_lane; ++l) {
      const W p = weight(row[l], lse[l]);
      gradient[l] = row[l] <= kHidden<W> ? W(0) : p * (gradient[l] - subtracted[l]);
      row[l] = p;
    }
  }
}

}  // namespace zea::detail
