// SPDX-License-Identifier: Apache-2.0
// Elements that lie together, as many as a lane of a device reads and writes at once; and how the
// function of a loop over elements gets its values, and where they go.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/element_math.hpp"

namespace zea::detail {

/// What a device's thread can read or write at once, from an address that is a multiple of it.
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
/// By the instruction: of an assignment the compiler may make several.
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

/// Rounds values into rows: those of a function that gives as many.
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

/// In place of a function: what is stored, as it is.
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

/// What takes values one by one is a pack's, too.
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

}  // namespace zea::detail
