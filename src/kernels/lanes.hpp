// SPDX-License-Identifier: Apache-2.0
// How a row functor meets the elements of its row. It is written once, over lanes: a core of the
// host is one lane, whose loops are vector code; on a device a team of threads has a lane each,
// which reads and writes 16 bytes at once. Element i is that of lane i / n modulo their number,
// where n elements are a pack, whether packs are read whole or not: orders of sums are fixed.
#pragma once

#include "core/kernel_sizes.hpp"
#include "kernels/packs.hpp"

namespace zea::detail {

/// A lane of a team, which has lane(), lanes(), all(value, join): the join of all lanes' values,
/// the same for each, and sync(). All lanes make the same calls.
template <class Team>
class TeamLane {
 public:
  ZEA_FUNCTION explicit TeamLane(const Team& team) : team_(team) {}

  ZEA_FUNCTION bool is_first() const { return team_.lane() == 0; }
  ZEA_FUNCTION void sync() const { team_.sync(); }

  /// write(i, f(elements i of the sources)) for all i < count, in any order; what a lane writes may
  /// be what it reads.
  template <class Write, class F, class... T>
  ZEA_FUNCTION void each(int64_t count, const Write& write, const F& f, const T*... sources) const {
    constexpr int kPack = elements_of_pack<T...>();
    const auto of_pack = [&](int64_t i) {
      const auto values = each_of_packs(f, i, pack_at<kPack>(sources + i)...);
      write_pack(write, i, values);
    };
    own_elements<kPack>(count, takes_packs(write) && (is_aligned(sources) && ...), of_pack,
                        [&](int64_t i) { write(i, value_of(f, i, sources[i]...)); });
  }

  template <class W, class F, class... T>
  ZEA_FUNCTION W sum(int64_t count, const F& f, const T*... sources) const {
    W sum = 0;
    each(
        count, [&](int64_t, W term) { sum += term; }, f, sources...);
    return team_.all(sum, [](W a, W b) { return a + b; });
  }

  /// Of an `f` that gives two values.
  template <class W, class F, class... T>
  ZEA_FUNCTION Values<W, 2> two_sums(int64_t count, const F& f, const T*... sources) const {
    const auto join = [](W a, W b) { return a + b; };
    Values<W, 2> sums{};
    each(
        count, [&](int64_t, const Values<W, 2>& terms) { sums += terms; }, f, sources...);
    const W first = team_.all(sums.of[0], join);
    return {first, team_.all(sums.of[1], join)};
  }

  /// Of `start` and f of all elements; NaNs are passed over.
  template <class W, class F, class... T>
  ZEA_FUNCTION W largest(int64_t count, W start, const F& f, const T*... sources) const {
    const auto larger = [](W a, W b) { return b > a ? b : a; };
    W largest = start;
    each(
        count, [&](int64_t, W value) { largest = larger(largest, value); }, f, sources...);
    return team_.all(largest, larger);
  }

  /// write(i, sum) for all i < count, of the sums over r < rows of f(row, elements i of the row),
  /// row = row_of(r). A row begins at element row.begin of the sources, a multiple of `stride`.
  template <class Write, class RowOf, class F, class... T>
  ZEA_FUNCTION void sum_rows(int64_t count, int64_t rows, int64_t stride, const Write& write,
                             const RowOf& row_of, const F& f, const T*... sources) const {
    constexpr int kPack = elements_of_pack<T...>();
    const auto of_pack = [&](int64_t i) {
      decltype(terms_of_packs(f, row_of(0), pack_at<kPack>(sources + i)...)) sums{};
      ZEA_UNROLL(4)
      for (int64_t r = 0; r < rows; ++r) {
        const auto row = row_of(r);
        sums += terms_of_packs(f, row, pack_at<kPack>(sources + row.begin + i)...);
      }
      write_pack(write, i, sums);
    };
    const auto of_one = [&](int64_t i) {
      decltype(f(row_of(0), load(sources[i])...)) sum{};
      for (int64_t r = 0; r < rows; ++r) {
        const auto row = row_of(r);
        sum += f(row, load(sources[row.begin + i])...);
      }
      write(i, sum);
    };
    const bool are_aligned =
        takes_packs(write) && ((is_aligned(sources) && is_aligned(sources + stride)) && ...);
    own_elements<kPack>(count, are_aligned, of_pack, of_one);
  }

 private:
  /// Calls of_pack(i) for this lane's packs, if they are aligned, and of_one(i) for other elements.
  template <int kPack, class OfPack, class OfOne>
  ZEA_FUNCTION void own_elements(int64_t count, bool are_aligned, const OfPack& of_pack,
                                 const OfOne& of_one) const {
    const int64_t step = int64_t{kPack} * team_.lanes();
    for (int64_t i = int64_t{kPack} * team_.lane(); i < count; i += step) {
      if (are_aligned && i + kPack <= count) {
        of_pack(i);
        continue;
      }
      ZEA_UNROLL(1)
      for (int64_t k = i; k < count && k < i + kPack; ++k) of_one(k);
    }
  }

  Team team_;
};

/// Bits as they are.
template <class Lanes, class T>
ZEA_FUNCTION void copy_elements(const Lanes& lanes, int64_t count, const T* source, T* target) {
  lanes.each(count, StoreTo<T>{target}, Unchanged{}, source);
}

/// Elements [begin, begin + count) of a flat tensor that an item is.
struct Chunk {
  ZEA_FUNCTION Chunk(int64_t item, int64_t elements)
      : begin(item * kChunkElements),
        count(elements - begin < kChunkElements ? elements - begin : kChunkElements) {}
  int64_t begin, count;
};

}  // namespace zea::detail
