// SPDX-License-Identifier: Apache-2.0
// The operands of a tile's products. Of single elements: rows are converted into a thread's own
// memory and serve both ways. Of pairs: along the head's dim rows are read where they lie; across
// rows they are woven. Scores stay floats; what is multiplied after the softmax is rounded.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "kernels/attention_tiles.hpp"
#include "kernels/pair_matmul.hpp"
#include "kernels/score_tile.hpp"
#include "kernels/tile_rows.hpp"

namespace zea::detail {

/// Groups of the inner dim that hold so many elements.
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

/// Where rows of one head stand: `rows` from `token`.
struct HeadRows {
  HeadTensor tensor;
  int64_t token, head, rows;
};

/// exp(scores), or gradients of scores, as left matrices: (keys, lanes), and its transpose. Of a
/// tile of pairs only what there was memory for.
template <class Terms>
struct WeightOperands {
  GroupRows<Terms> along_lanes;
  GroupRows<Terms> across_keys;
};

/// Of a head's operands; memory is counted in elements as large as a sum.
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

}  // namespace zea::detail
