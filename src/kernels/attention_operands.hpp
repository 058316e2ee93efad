// SPDX-License-Identifier: Apache-2.0
// The operands of a tile's products and its scores. Rows of fp32 and fp64 are converted into a
// thread's own memory and serve as both operands. Pairs of bf16 are read where they lie along the
// head's dim, and woven across rows. Scores stay fp32; the operands after the softmax are rounded.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>

#include "kernels/attention_tiles.hpp"
#include "kernels/launch.hpp"
#include "kernels/pair_matmul.hpp"
#include "kernels/tile_product.hpp"
#include "kernels/tile_rows.hpp"
#include "kernels/tiled_attention.hpp"

namespace zea::detail {

// Scores of some keys (rows) and a tile's queries (lanes): which of them are visible, and the
// softmax over keys, which goes down the rows and so never across lanes.

inline constexpr int64_t kTileKeys = 128;

/// Less than any score; its exponential counts as zero.
template <class W>
inline constexpr W kHidden = W(-1e30);

/// The visible lanes of a score tile, by row.
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
  /// Returns the visible part of a matrix whose lanes are those from begin_lane on.
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

/// Hides scores that are computed but masked.
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

/// Returns the groups of the inner dim that hold `elements` elements.
template <class Terms>
constexpr int64_t groups_of(int64_t elements) {
  return (elements + Terms::kElements - 1) / Terms::kElements;
}

template <class Terms>
struct GroupRows {
  const typename Terms::Group* data;
  int64_t stride;
};

/// Keys, or values, of a tile, as left matrix (keys, dim) and as right one (keys, columns).
template <class Terms>
struct KeyOperands {
  GroupRows<Terms> along_dim;
  GroupRows<Terms> across_keys;
};

/// Queries, or output gradients, of a tile, as right matrices: (dim, lanes) and (lanes, columns).
/// Lanes beyond the queries are zero.
template <class Terms>
struct QueryOperands {
  typename Terms::Group* along_dim;
  typename Terms::Group* across_lanes;  ///< null: not needed
};

/// The `rows` rows of one head from `token` on.
struct HeadRows {
  HeadTensor tensor;
  int64_t token, head, rows;
};

/// exp(scores), or gradients of scores, as left matrices: (keys, lanes), and its transpose. A tile
/// of pairs has only the ones that there was memory for.
template <class Terms>
struct WeightOperands {
  GroupRows<Terms> along_lanes;
  GroupRows<Terms> across_keys;
};

/// The shapes of a head's operands; memory is counted in elements as large as a sum.
template <class Terms>
struct OperandShapes {
  using Sum = typename Terms::Sum;

  explicit OperandShapes(int64_t head_dim) : dim(head_dim), columns(round_to(dim, kLanes<Sum>)) {}

  int64_t groups() const { return groups_of<Terms>(dim); }
  /// Groups of a row in whole vectors.
  int64_t width() const { return round_to(groups(), kLanes<Sum>); }

  int64_t dim, columns;
};

template <class W>
KeyOperands<Singles<W>> load_keys(const HeadRows& from, const OperandShapes<Singles<W>>& shapes,
                                  W* memory, bool /*across_keys*/) {
  load_rows<W>(from.tensor, from.token, from.head, W(1),
               {memory, from.rows, shapes.dim, shapes.columns});
  return {{memory, shapes.columns}, {memory, shapes.columns}};
}

/// `spare`: memory for rows of all lanes.
template <class W>
void load_queries(const HeadRows& from, int64_t lanes, const OperandShapes<Singles<W>>& shapes,
                  W* spare, const QueryOperands<Singles<W>>& to) {
  W* const rows = to.across_lanes ? to.across_lanes : spare;
  const int64_t columns = shapes.columns;
  load_rows<W>(from.tensor, from.token, from.head, W(1), {rows, from.rows, shapes.dim, columns});
  std::fill_n(rows + from.rows * columns, (lanes - from.rows) * columns, W(0));
  transpose(rows, columns, lanes, columns, to.along_dim, lanes);
}

/// They serve as they are.
template <class W>
WeightOperands<Singles<W>> weight_operands(Singles<W>, const ScoreTile<W>& scores,
                                           const PairedRows&) {
  return {{scores.data, scores.stride}, {scores.data, scores.stride}};
}

#ifdef ZEA_HAS_PAIRS

inline KeyOperands<Pairs> load_keys(const HeadRows& from, const OperandShapes<Pairs>& shapes,
                                    float* memory, bool across_keys) {
  const Bf16* rows = from.tensor.bf16(from.token, from.head);
  const int64_t stride = from.tensor.token_stride();
  auto* woven = reinterpret_cast<Bf16Pair*>(memory);
  if (across_keys) weave_rows(rows, stride, from.rows, shapes.dim, woven, shapes.columns);
  return {{reinterpret_cast<const Bf16Pair*>(rows), stride / 2}, {woven, shapes.columns}};
}

inline void load_queries(const HeadRows& from, int64_t lanes, const OperandShapes<Pairs>& shapes,
                         float* spare, const QueryOperands<Pairs>& to) {
  const Bf16* rows = from.tensor.bf16(from.token, from.head);
  const int64_t stride = from.tensor.token_stride(), width = shapes.width();
  copy_pairs(reinterpret_cast<const Bf16Pair*>(rows), stride / 2, from.rows, shapes.groups(), spare,
             width);
  std::fill_n(spare + from.rows * width, (lanes - from.rows) * width, 0.0F);
  transpose(spare, width, lanes, width, reinterpret_cast<float*>(to.along_dim), lanes);
  if (!to.across_lanes) return;
  weave_rows(rows, stride, from.rows, shapes.dim, to.across_lanes, shapes.columns);
  const int64_t woven = groups_of<Pairs>(from.rows);
  std::fill_n(to.across_lanes + woven * shapes.columns, (lanes / 2 - woven) * shapes.columns, 0);
}

inline WeightOperands<Pairs> weight_operands(Pairs, const ScoreTile<float>& scores,
                                             const PairedRows& memory) {
  pair_rows(scores.data, scores.stride, scores.seen.rows, scores.seen.begin_lane,
            scores.seen.end_lane, memory);
  return {{memory.along, scores.stride / 2}, {memory.across, scores.stride}};
}

#endif

/// Whether these, all of them, can be multiplied by pairs.
inline bool take_pairs(std::initializer_list<const at::Tensor*> tensors) {
  return pair_use() != PairUse::None &&
         std::all_of(tensors.begin(), tensors.end(), [](const auto* tensor) {
           return HeadTensor(*tensor).has_pairs(tensor->size(2));
         });
}

// Sizes of a call, and how threads take work, in forward and backward.

/// A call's heads, and their elements as tiles have them.
struct TileHeads {
  explicit TileHeads(const AttentionInputs& in)
      : heads(in.q.size(1)), kv_heads(in.k.size(1)), dim(in.q.size(2)), scores(in.scores) {
    ZEA_ASSERT(kv_heads > 0 && heads % kv_heads == 0 && in.v.size(1) == kv_heads);
  }

  int64_t group() const { return heads / kv_heads; }
  double scale() const { return scores.scale_of(dim); }

  int64_t heads, kv_heads, dim;
  ScoreSpec scores;
};

/// Calls `run(worker, item)` for all items in descending order, each on whichever thread is free;
/// `make_worker()` makes a thread's memory.
template <class MakeWorker, class Run>
void for_each_item(int64_t items, MakeWorker make_worker, Run run) {
  std::atomic<int64_t> left{items};
  for_each_chunk(
      std::min<int64_t>(items, at::get_num_threads()),
      [&](int64_t, int64_t, int64_t) {
        int64_t item = --left;
        if (item < 0) return;
        auto worker = make_worker();
        for (; item >= 0; item = --left) run(worker, item);
      },
      1);
}

}  // namespace zea::detail
