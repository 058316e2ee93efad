// SPDX-License-Identifier: Apache-2.0
// Scores of some keys (rows) and a tile's queries (lanes): what is seen of them, and the softmax
// over keys, which goes down the rows and so never across lanes.
#pragma once

#include "kernels/attention_tiles.hpp"
#include "kernels/tile_product.hpp"

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
        is_causal(piece.mask == SliceMask::Causal && rows - 1 > piece.first + offset),
        is_anti_causal(piece.mask == SliceMask::AntiCausal && piece.end - 1 + offset > 0),
        vector(vector) {}

  int64_t first_seen(int64_t row) const {
    return is_causal ? std::clamp(row - offset, first, end) : first;
  }
  int64_t end_seen(int64_t row) const {
    return is_anti_causal ? std::clamp(row - offset + 1, first, end) : end;
  }
  /// These in whole vectors.
  int64_t first_vector(int64_t row) const { return first_seen(row) / vector * vector; }
  int64_t end_vector(int64_t row) const { return round_to(end_seen(row), vector); }
  int64_t lanes() const { return end_lane - begin_lane; }
  /// What is seen of a matrix whose lanes are those from begin_lane on.
  SeenPart part(Diagonal of) const {
    if (!is_causal && !is_anti_causal) return {};
    return {of, is_anti_causal, offset + begin_lane};
  }

  int64_t rows, first, end;      ///< [first, end): lanes of the piece
  int64_t begin_lane, end_lane;  ///< these in whole vectors
  int64_t offset;
  bool is_causal, is_anti_causal;  ///< on the diagonal of such a square
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
    for (int64_t l = seen.end_seen(i); l < seen.end_vector(i); ++l) row[l] = kHidden<W>;
  }
}

[[gnu::always_inline]] inline double tangent(double x) {
  return std::tanh(x);
}
/// tanh(x): by its series near 0, where the quotient would lose digits.
[[gnu::always_inline]] inline float tangent(float x) {
  const float s = x * x;
  const float series =
      x *
      (1.0F + s * (-0.333333333F + s * (0.133333333F + s * (-0.0539682540F + s * 0.0218694885F))));
  const float quotient = 1.0F - 2.0F / (exponential(2.0F * x) + 1.0F);
  return s < 0.0625F ? series : quotient;
}

/// scores = cap tanh(scores / cap), whether they are seen or not.
template <class W>
ZEA_WIDE_CLONES void cap_scores(const ScoreTile<W>& scores, W cap) {
  const SeenLanes& seen = scores.seen;
  for (int64_t i = 0; i < seen.rows; ++i) {
    W* __restrict row = scores.row(i);
    const int64_t end = seen.end_vector(i);
#pragma omp simd
    for (int64_t l = seen.first_vector(i); l < end; ++l) row[l] = cap * tangent(row[l] / cap);
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
    const int64_t end = seen.end_vector(i);
    for (int64_t l = seen.first_vector(i); l < end; ++l)
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
    const int64_t first = seen.first_vector(i), end = seen.end_vector(i);
    for (int64_t l = seen.begin_lane; l < first; ++l) row[l] = 0;
    for (int64_t l = end; l < seen.end_lane; ++l) row[l] = 0;
#pragma omp simd
    for (int64_t l = first; l < end; ++l) {
      row[l] = weight(row[l], largest[l]);
      sum[l] += row[l];
    }
  }
}

/// scores = p = exp(scores - lse), and gradients = p (gradients - subtracted); of scores that were
/// capped those of what they were before.
template <bool Capped, class W>
ZEA_WIDE_CLONES void score_gradients(const ScoreTile<W>& scores, W* gradients,
                                     const W* __restrict lse, const W* __restrict subtracted,
                                     W cap) {
  const SeenLanes& seen = scores.seen;
  for (int64_t i = 0; i < seen.rows; ++i) {
    W* __restrict row = scores.row(i);
    W* __restrict gradient = gradients + i * scores.stride;
    const int64_t first = seen.first_vector(i), end = seen.end_vector(i);
    for (int64_t l = seen.begin_lane; l < first; ++l) row[l] = gradient[l] = 0;
    for (int64_t l = end; l < seen.end_lane; ++l) row[l] = gradient[l] = 0;
#pragma omp simd
    for (int64_t l = first; l < end; ++l) {
      const W p = weight(row[l], lse[l]);
      W change = p * (gradient[l] - subtracted[l]);
      if constexpr (Capped) change *= 1 - row[l] / cap * (row[l] / cap);
      gradient[l] = row[l] <= kHidden<W> ? W(0) : change;
      row[l] = p;
    }
  }
}

}  // namespace zea::detail
