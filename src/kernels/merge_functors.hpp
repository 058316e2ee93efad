// SPDX-License-Identifier: Apache-2.0
// What merging two attentions of the same queries does with one head of one query.
#pragma once

#include "kernels/lanes.hpp"

namespace zea::detail {

/// Elements between neighbours of a tensor (slices, queries, KV heads, query heads of each, ...).
struct StackStrides {
  int64_t slice, query, kv_head, head;
};

/// Where the items of a part, (rows, heads), are read and what they are added to.
struct MergePlaces {
  const int64_t* real;  ///< of the stack's queries that each row is; null: all, in order
  const int64_t* rows;  ///< where each is added; null: from first_row on
  int64_t first_row, queries, heads, group;

  ZEA_FUNCTION int64_t row(int64_t item) const {
    return rows ? rows[item / heads] : first_row + item / heads;
  }
  ZEA_FUNCTION int64_t in_stack(int64_t item, const StackStrides& strides) const {
    const int64_t place = real ? real[item / heads] : item / heads, head = item % heads;
    return place / queries * strides.slice + place % queries * strides.query +
           head / group * strides.kv_head + head % group * strides.head;
  }
};

/// out = (out e^lse + part e^part_lse) / e^lse', lse' = log(e^lse + e^part_lse).
template <class T>
struct MergeHead {
  const T* part;
  const Wide<T>* part_lse;
  Wide<T>*out, *lse;
  StackStrides of_part, of_part_lse;
  int64_t out_row, out_head, lse_row, lse_head;  ///< strides of what is added to
  MergePlaces places;
  int64_t dim;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t row = places.row(item), head = item % places.heads;
    Wide<T>* own_lse = lse + row * lse_row + head * lse_head;
    const Wide<T> before = *own_lse, more = part_lse[places.in_stack(item, of_part_lse)];
    const Wide<T> most = before > more ? before : more;
    const Wide<T> kept = std::exp(before - most), added = std::exp(more - most);
    const Wide<T> total = kept + added, keeps = kept / total, adds = added / total;
    const T* source = part + places.in_stack(item, of_part);
    Wide<T>* target = out + row * out_row + head * out_head;
    lanes.sync();  // all lanes have read what one is about to overwrite
    if (lanes.is_first()) *own_lse = most + std::log(total);
    const auto value = [=](Wide<T> sum, Wide<T> more)
                           ZEA_INLINE_LAMBDA { return sum * keeps + more * adds; };
    lanes.each(dim, StoreTo<Wide<T>>{target}, value, target, source);
  }
};

}  // namespace zea::detail
