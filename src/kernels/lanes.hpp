// SPDX-License-Identifier: Apache-2.0
// How a row functor meets the elements of its row. It is written once, over lanes: a core of the
// host is one lane, whose loops are vector code; on a device a team of threads has a lane each, and
// element i is that of lane i modulo their number. Orders of sums are fixed either way.
#pragma once

#include "element_math.hpp"
#include "zea/core/kernel_sizes.hpp"

namespace zea::detail {

template <class W>
struct TwoValues {
  W first, second;
};

/// A lane of a team, which has lane(), lanes(), all(value, join): the join of all lanes' values,
/// the same for each, and sync(). All lanes make the same calls.
template <class Team>
class TeamLane {
 public:
  ZEA_FUNCTION explicit TeamLane(const Team& team) : team_(team) {}

  ZEA_FUNCTION bool is_first() const { return team_.lane() == 0; }
  ZEA_FUNCTION void sync() const { team_.sync(); }

  /// Several elements are read before the first is written: a device hides the latency of memory
  /// by what is under way.
  template <class Read, class Write>
  ZEA_FUNCTION void each(int64_t count, const Read& read, const Write& write) const {
    constexpr int kAtOnce = 4;
    const int64_t stride = team_.lanes();
    int64_t i = team_.lane();
    for (; i + (kAtOnce - 1) * stride < count; i += kAtOnce * stride) {
      decltype(read(i)) values[kAtOnce];
      for (int k = 0; k < kAtOnce; ++k) values[k] = read(i + k * stride);
      for (int k = 0; k < kAtOnce; ++k) write(i + k * stride, values[k]);
    }
    for (; i < count; i += stride) write(i, read(i));
  }

  template <class W, class Term>
  ZEA_FUNCTION W sum(int64_t count, const Term& term) const {
    W sum = 0;
    for (int64_t i = team_.lane(); i < count; i += team_.lanes()) sum += term(i);
    return team_.all(sum, [](W a, W b) { return a + b; });
  }

  template <class W, class First, class Second>
  ZEA_FUNCTION TwoValues<W> two_sums(int64_t count, const First& first,
                                     const Second& second) const {
    const auto join = [](W a, W b) { return a + b; };
    W one = 0, other = 0;
    for (int64_t i = team_.lane(); i < count; i += team_.lanes()) {
      one += first(i);
      other += second(i);
    }
    one = team_.all(one, join);
    return {one, team_.all(other, join)};
  }

  template <class W, class Value>
  ZEA_FUNCTION W largest(int64_t count, W start, const Value& value) const {
    const auto larger = [](W a, W b) { return b > a ? b : a; };
    W largest = start;
    for (int64_t i = team_.lane(); i < count; i += team_.lanes())
      largest = larger(largest, value(i));
    return team_.all(largest, larger);
  }

 private:
  Team team_;
};

template <class Lanes, class T>
ZEA_FUNCTION void copy_elements(const Lanes& lanes, int64_t count, const T* source, T* target) {
  lanes.each(
      count, [=](int64_t i) ZEA_INLINE_LAMBDA { return source[i]; },
      [=](int64_t i, const T& value) ZEA_INLINE_LAMBDA { target[i] = value; });
}

/// Rounds values into a row.
template <class T>
struct StoreTo {
  T* target;
  ZEA_FUNCTION void operator()(int64_t i, Wide<T> value) const { store(target[i], value); }
};

/// Elements [begin, begin + count) of a flat tensor that an item is.
struct Chunk {
  ZEA_FUNCTION Chunk(int64_t item, int64_t elements)
      : begin(item * kChunkElements),
        count(elements - begin < kChunkElements ? elements - begin : kChunkElements) {}
  int64_t begin, count;
};

}  // namespace zea::detail
