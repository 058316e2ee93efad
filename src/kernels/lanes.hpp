// SPDX-License-Identifier: Apache-2.0
// How a row functor meets the elements of its row. It is written once, over lanes: a core of the
// host is one lane, whose loops are vector code; on a device a team of threads has a lane each,
// which reads and writes 16 bytes at once. Element i is that of lane i / n modulo their number,
// where n elements are a pack, whether packs are read whole or not: orders of sums are fixed.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/kernel_sizes.hpp"
#include "kernels/element_math.hpp"

namespace zea::detail {

// Elements that lie together, as many as a lane of a device reads and writes at once; and how the
// function of a loop over elements gets its values, and where they go.

/// The bytes that a device's thread can read or write at once, at an address that is a multiple of
/// them.
inline constexpr size_t kPackBytes = 16;

/// Elements of a pack, of which the narrowest of the types have 16 bytes; of others it is several
/// times as long.
template <class... T>
constexpr int elements_of_pack() {
  return static_cast<int>(kPackBytes / std::min({sizeof(T)...}));
}

template <class T, int kCount>
struct alignas(kPackBytes) Pack {
  T of[kCount];

  ZEA_FUNCTION void operator+=(const Pack& other) {
    for (int i = 0; i < kCount; ++i) of[i] += other.of[i];
  }
};

#if defined(__CUDACC__)
using PackWord = uint4;
/// Uses the instruction, since the compiler may split an assignment.
ZEA_FUNCTION void store_word(PackWord* target, const PackWord& word) {
  __stwb(target, word);
}
#else
struct [[gnu::may_alias]] PackWord {
  alignas(kPackBytes) uint32_t of[4];
};
ZEA_FUNCTION void store_word(PackWord* target, const PackWord& word) {
  *target = word;
}
#endif

template <class OfPack>
struct PackWords {
  PackWord of[sizeof(OfPack) / kPackBytes];
};

template <int kCount, class T>
ZEA_FUNCTION Pack<T, kCount> pack_at(const T* source) {
  using OfPack = Pack<T, kCount>;
  PackWords<OfPack> words;
  for (size_t i = 0; i < sizeof(words) / kPackBytes; ++i)
    words.of[i] = reinterpret_cast<const PackWord*>(source)[i];
  return std::bit_cast<OfPack>(words);
}

template <class T, int kCount>
ZEA_FUNCTION void store_pack(T* target, const Pack<T, kCount>& pack) {
  const auto words = std::bit_cast<PackWords<Pack<T, kCount>>>(pack);
  for (size_t i = 0; i < sizeof(words) / kPackBytes; ++i)
    store_word(reinterpret_cast<PackWord*>(target) + i, words.of[i]);
}

ZEA_FUNCTION bool is_aligned(const void* elements) {
  return reinterpret_cast<uintptr_t>(elements) % kPackBytes == 0;
}

/// Several results of one function.
template <class W, int kCount>
struct Values {
  W of[kCount];

  ZEA_FUNCTION void operator+=(const Values& other) {
    for (int i = 0; i < kCount; ++i) of[i] += other.of[i];
  }
};

/// Rounds values into rows, one row for each value of the function.
template <class T, int kCount = 1>
struct StoreTo {
  T* targets[kCount];

  template <class W>
  ZEA_FUNCTION void operator()(int64_t i, const W& value) const {
    store(targets[0][i], value);
  }
  template <class W>
  ZEA_FUNCTION void operator()(int64_t i, const Values<W, kCount>& values) const {
    for (int k = 0; k < kCount; ++k) store(targets[k][i], values.of[k]);
  }
};

/// The element type that a writer stores; for writers other than StoreTo the widest type.
template <class Write>
struct StoredBy {
  using Type = double;
};
template <class T, int kCount>
struct StoredBy<StoreTo<T, kCount>> {
  using Type = T;
};

/// Stands for a function: copies stored elements as they are.
struct Unchanged {};

/// A function of the elements' place, too.
template <class F>
struct OfPlace {
  F function;
};
template <class F>
OfPlace(F) -> OfPlace<F>;

template <class F, class... T>
ZEA_FUNCTION auto value_of(const F& f, int64_t, const T&... stored) {
  return f(load(stored)...);
}
template <class F, class... T>
ZEA_FUNCTION auto value_of(const OfPlace<F>& f, int64_t i, const T&... stored) {
  return f.function(i, load(stored)...);
}
template <class T>
ZEA_FUNCTION T value_of(const Unchanged&, int64_t, const T& stored) {
  return stored;
}

/// The values of the elements of packs, of which the first is element i.
template <class F, int kCount, class... T>
ZEA_FUNCTION auto each_of_packs(const F& f, int64_t i, const Pack<T, kCount>&... packs) {
  Pack<decltype(value_of(f, i, packs.of[0]...)), kCount> values;
  for (int k = 0; k < kCount; ++k) values.of[k] = value_of(f, i + k, packs.of[k]...);
  return values;
}

/// The same of an element of a row.
template <class F, class Row, int kCount, class... T>
ZEA_FUNCTION auto terms_of_packs(const F& f, const Row& row, const Pack<T, kCount>&... packs) {
  Pack<decltype(f(row, load(packs.of[0])...)), kCount> terms;
  for (int k = 0; k < kCount; ++k) terms.of[k] = f(row, load(packs.of[k])...);
  return terms;
}

/// Writers of single values take packs, too.
template <class Write>
ZEA_FUNCTION bool takes_packs(const Write&) {
  return true;
}
template <class Write, class W, int kCount>
ZEA_FUNCTION void write_pack(const Write& write, int64_t i, const Pack<W, kCount>& values) {
  for (int k = 0; k < kCount; ++k) write(i + k, values.of[k]);
}

template <class T, int kTargets>
ZEA_FUNCTION bool takes_packs(const StoreTo<T, kTargets>& write) {
  bool are = true;
  for (int n = 0; n < kTargets; ++n) are = are && is_aligned(write.targets[n]);
  return are;
}
template <class T, int kTargets, class W, int kCount>
ZEA_FUNCTION void write_pack(const StoreTo<T, kTargets>& write, int64_t i,
                             const Pack<W, kCount>& values) {
  Pack<T, kCount> rounded[kTargets];
  StoreTo<T, kTargets> here;
  for (int n = 0; n < kTargets; ++n) here.targets[n] = rounded[n].of;
  for (int k = 0; k < kCount; ++k) here(k, values.of[k]);
  for (int n = 0; n < kTargets; ++n) store_pack(write.targets[n] + i, rounded[n]);
}

/// Whether a row of sum_rows() is left out, where rows of its kind may be.
template <class Row>
ZEA_FUNCTION bool is_absent_row([[maybe_unused]] const Row& row) {
  if constexpr (requires { row.is_absent(); })
    return row.is_absent();
  else
    return false;
}

/// A lane of a team, which has lane(), lanes(), all(value, join): the join of all lanes' values,
/// the same for each, and sync(). All lanes make the same calls.
template <class Team>
class TeamLane {
 public:
  ZEA_FUNCTION explicit TeamLane(const Team& team) : team_(team) {}

  ZEA_FUNCTION bool is_first() const { return team_.lane() == 0; }
  ZEA_FUNCTION void sync() const { team_.sync(); }

  /// Calls write(i, f(elements i of the sources)) for all i < count, in any order; a lane may
  /// overwrite elements that it has read.
  template <class Write, class F, class... T>
  ZEA_FUNCTION void each(int64_t count, const Write& write, const F& f, const T*... sources) const {
    constexpr int kPack = elements_of_pack<T..., typename StoredBy<Write>::Type>();
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

  /// The sums of both values of an `f` that returns two.
  template <class W, class F, class... T>
  ZEA_FUNCTION Values<W, 2> two_sums(int64_t count, const F& f, const T*... sources) const {
    const auto join = [](W a, W b) { return a + b; };
    Values<W, 2> sums{};
    each(
        count, [&](int64_t, const Values<W, 2>& terms) { sums += terms; }, f, sources...);
    const W first = team_.all(sums.of[0], join);
    return {first, team_.all(sums.of[1], join)};
  }

  /// The largest of `start` and f of all elements; NaNs are skipped.
  template <class W, class F, class... T>
  ZEA_FUNCTION W largest(int64_t count, W start, const F& f, const T*... sources) const {
    const auto larger = [](W a, W b) { return b > a ? b : a; };
    W largest = start;
    each(
        count, [&](int64_t, W value) { largest = larger(largest, value); }, f, sources...);
    return team_.all(largest, larger);
  }

  /// write(i, sum) for all i < count, of the sums over r < rows of f(row, elements i of the row),
  /// row = row_of(r). A row begins at element row.begin of the sources, a multiple of `stride`; an
  /// absent one (is_absent_row) is left out.
  template <class Write, class RowOf, class F, class... T>
  ZEA_FUNCTION void sum_rows(int64_t count, int64_t rows, int64_t stride, const Write& write,
                             const RowOf& row_of, const F& f, const T*... sources) const {
    constexpr int kPack = elements_of_pack<T..., typename StoredBy<Write>::Type>();
    const auto of_pack = [&](int64_t i) {
      decltype(terms_of_packs(f, row_of(0), pack_at<kPack>(sources + i)...)) sums{};
      ZEA_UNROLL(4)
      for (int64_t r = 0; r < rows; ++r) {
        const auto row = row_of(r);
        if (is_absent_row(row)) continue;
        sums += terms_of_packs(f, row, pack_at<kPack>(sources + row.begin + i)...);
      }
      write_pack(write, i, sums);
    };
    const auto of_one = [&](int64_t i) {
      decltype(f(row_of(0), load(sources[i])...)) sum{};
      for (int64_t r = 0; r < rows; ++r) {
        const auto row = row_of(r);
        if (is_absent_row(row)) continue;
        sum += f(row, load(sources[row.begin + i])...);
      }
      write(i, sum);
    };
    const bool are_aligned =
        takes_packs(write) && ((is_aligned(sources) && is_aligned(sources + stride)) && ...);
    own_elements<kPack>(count, are_aligned, of_pack, of_one);
  }

  /// Computes kRows rows of a product: to.targets[k][i] = (adds ? to.targets[k][i] : 0) + the sum
  /// over r < inner of factors_of(r).of[k] right[r * stride + i], for all i < count. Each lane
  /// reads and writes only its own elements of rows.
  template <int kRows, class T, class FactorsOf, class W>
  ZEA_FUNCTION void multiply(int64_t count, int64_t inner, int64_t stride,
                             const StoreTo<T, kRows>& to, bool adds, const FactorsOf& factors_of,
                             const W* right) const {
    constexpr int kPack = elements_of_pack<W, T>();
    const auto of_pack = [&](int64_t i) {
      Pack<Values<W, kRows>, kPack> sums{};
      for (int k = 0; k < kRows && adds; ++k) {
        const Pack<T, kPack> old = pack_at<kPack>(to.targets[k] + i);
        for (int e = 0; e < kPack; ++e) sums.of[e].of[k] = load(old.of[e]);
      }
      ZEA_UNROLL(4)
      for (int64_t r = 0; r < inner; ++r) {
        const Values<W, kRows> factors = factors_of(r);
        const Pack<W, kPack> row = pack_at<kPack>(right + r * stride + i);
        for (int e = 0; e < kPack; ++e)
          for (int k = 0; k < kRows; ++k) sums.of[e].of[k] += factors.of[k] * row.of[e];
      }
      write_pack(to, i, sums);
    };
    const auto of_one = [&](int64_t i) {
      Values<W, kRows> sums{};
      for (int k = 0; k < kRows && adds; ++k) sums.of[k] = load(to.targets[k][i]);
      ZEA_UNROLL(1)
      for (int64_t r = 0; r < inner; ++r) {
        const Values<W, kRows> factors = factors_of(r);
        for (int k = 0; k < kRows; ++k) sums.of[k] += factors.of[k] * right[r * stride + i];
      }
      to(i, sums);
    };
    const bool are_aligned = takes_packs(to) && is_aligned(right) && is_aligned(right + stride);
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
