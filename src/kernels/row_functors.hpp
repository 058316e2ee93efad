// SPDX-License-Identifier: Apache-2.0
// Functors over rows of tokens and tiles of logits: what a kernel does with one row, head or pair
// of halves, over lanes (lanes.hpp).
#pragma once

#include "core/mixed_bits.hpp"
#include "kernels/lanes.hpp"

namespace zea::detail {

// Activations that are x times a gate between 0 and 1.

/// A gate, and the slope of x gate(x).
template <class W>
struct Gated {
  W gate, slope;
};

/// sigmoid(x) (SiLU, arXiv:1702.03118).
struct SiluGate {
  template <class W>
  ZEA_FUNCTION static Gated<W> at(W x) {
    const W s = sigmoid(x);
    return {s, s * (1 + x * (1 - s))};
  }
};

struct QuickGate {
  template <class W>
  ZEA_FUNCTION static Gated<W> at(W x) {
    constexpr W steepness = static_cast<W>(1.702);
    const W s = sigmoid(steepness * x);
    return {s, s + steepness * x * s * (1 - s)};
  }
};

/// (1 + tanh(u)) / 2 = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct TanhGate {
  template <class W>
  ZEA_FUNCTION static Gated<W> at(W x) {
    constexpr W twice = static_cast<W>(1.5957691216057308), cubic = static_cast<W>(0.044715);
    const W s = sigmoid(twice * (x + cubic * x * x * x));
    return {s, s + x * s * (1 - s) * twice * (1 + 3 * cubic * x * x)};
  }
};

/// Half of erfc(|z|), which is also exp(-z^2) times a polynomial of 1 / (1 + p |z|) within 1.5e-7
/// (Abramowitz and Stegun, 7.1.26).
ZEA_FUNCTION float half_erfc(float z, float bell) {
  const float t = 1 / (1 + 0.3275911f * z);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  return 0.5f * p * t * bell;
}
ZEA_FUNCTION double half_erfc(double z, double) {
  return 0.5 * std::erfc(z);
}

struct ErfGate {
  template <class W>
  ZEA_FUNCTION static Gated<W> at(W x) {
    const W size = x < 0 ? -x : x;
    const W bell = exponential(W(-0.5) * x * x);
    const W tail = half_erfc(size * static_cast<W>(0.70710678118654752), bell);
    const W gate = x < 0 ? tail : 1 - tail;
    return {gate, gate + x * bell * static_cast<W>(0.39894228040143268)};
  }
};

/// y = z gate(z) up.
template <class Gate, class T>
struct GatedRow {
  const T* x;
  T* y;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T* source = x + row * 2 * width;
    const auto value = [](Wide<T> z, Wide<T> up)
                           ZEA_INLINE_LAMBDA { return z * Gate::at(z).gate * up; };
    lanes.each(width, StoreTo<T>{y + row * width}, value, source, source + width);
  }
};

template <class Gate, class T>
struct GatedRowBackward {
  const T *dy, *x;
  T* dx;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T* source = x + row * 2 * width;
    T* dgate = dx + row * 2 * width;
    const auto values = [](Wide<T> d, Wide<T> z, Wide<T> up) ZEA_INLINE_LAMBDA {
      const auto gated = Gate::at(z);
      return Values<Wide<T>, 2>{d * up * gated.slope, d * z * gated.gate};
    };
    lanes.each(width, StoreTo<T, 2>{dgate, dgate + width}, values, dy + row * width, source,
               source + width);
  }
};

/// Neighboring columns: a gate and what it scales, or a pair of coordinates that rotates.
template <class T>
struct Neighbors {
  T first, second;
};
template <class T>
ZEA_FUNCTION Neighbors<Wide<T>> load(const Neighbors<T>& stored) {
  return {load(stored.first), load(stored.second)};
}
template <class T>
ZEA_FUNCTION void store(Neighbors<T>& target, const Values<Wide<T>, 2>& values) {
  store(target.first, values.of[0]);
  store(target.second, values.of[1]);
}

/// y = g sigmoid(alpha g) (u + 1): g is the gate, at most `limit`, and u is up, at most `limit` in
/// size.
template <class T>
struct ClampedGateRow {
  const Neighbors<T>* x;
  T* y;
  Wide<T> alpha, limit;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T* target = y + row * width;
    const Wide<T> steepness = alpha, most = limit;
    // A source that is not used, so that packs are as long as those of the target.
    const auto value = [=](const Neighbors<Wide<T>>& z, Wide<T>) ZEA_INLINE_LAMBDA {
      const Wide<T> g = z.first > most ? most : z.first;
      const Wide<T> u = z.second > most ? most : z.second < -most ? -most : z.second;
      return g * sigmoid(steepness * g) * (u + 1);
    };
    lanes.each(width, StoreTo<T>{y + row * width}, value, x + row * width, target);
  }
};

template <class T>
struct ClampedGateRowBackward {
  const T* dy;
  const Neighbors<T>* x;
  Neighbors<T>* dx;
  Wide<T> alpha, limit;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const Wide<T> steepness = alpha, most = limit;
    const auto values = [=](Wide<T> d, const Neighbors<Wide<T>>& z) ZEA_INLINE_LAMBDA {
      const Wide<T> g = z.first > most ? most : z.first;
      const Wide<T> u = z.second > most ? most : z.second < -most ? -most : z.second;
      const Wide<T> s = sigmoid(steepness * g);
      const Wide<T> slope = s * (1 + steepness * g * (1 - s));
      return Values<Wide<T>, 2>{z.first > most ? Wide<T>(0) : d * (u + 1) * slope,
                                z.second > most || z.second < -most ? Wide<T>(0) : d * g * s};
    };
    lanes.each(width, StoreTo<Neighbors<T>>{dx + row * width}, values, dy + row * width,
               x + row * width);
  }
};

/// Multiplies a row by a factor, in place.
template <class T>
struct ScaleRow {
  T* x;
  const Wide<T>* factors;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T* source = x + row * width;
    const Wide<T> factor = factors[row];
    const auto value = [=](Wide<T> element) ZEA_INLINE_LAMBDA { return element * factor; };
    lanes.each(width, StoreTo<T>{x + row * width}, value, source);
  }
};

/// The scalar product of two rows.
template <class T>
struct RowDot {
  const T *x, *y;
  Wide<T>* dots;
  int64_t width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const auto product = [](Wide<T> one, Wide<T> other) ZEA_INLINE_LAMBDA { return one * other; };
    const Wide<T> sum =
        lanes.template sum<Wide<T>>(width, product, x + row * width, y + row * width);
    if (lanes.is_first()) dots[row] = sum;
  }
};

/// Rotates the first 2 * half coordinates of `heads` heads of a token in place; a token has `items`
/// such items. Head h uses row h % parts of the token's tables. Pairs are coordinates of both
/// halves, or neighbors.
template <class T, bool kOfNeighbors = false>
struct RotateHeads {
  T* x;
  const T *cosines, *sines;
  Wide<T> sign;  ///< -1: by the negative angles
  int64_t all_heads, heads, items, dim, half, parts = 1;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t token = item / items, first_head = item % items * heads;
    T* head = x + (token * all_heads + first_head) * dim;
    const Wide<T> turned = sign;
    const auto values = [=](Wide<T> first, Wide<T> second, Wide<T> c,
                            Wide<T> sine) ZEA_INLINE_LAMBDA {
      const Wide<T> s = turned * sine;
      return Values<Wide<T>, 2>{first * c - second * s, second * c + first * s};
    };
    for (int64_t h = first_head; h < first_head + heads; ++h, head += dim) {
      const int64_t angles = (token * parts + h % parts) * half;
      if constexpr (kOfNeighbors) {
        auto* pairs = reinterpret_cast<Neighbors<T>*>(head);
        const auto of_pair =
            [=](const Neighbors<Wide<T>>& pair, Wide<T> c, Wide<T> sine)
                ZEA_INLINE_LAMBDA { return values(pair.first, pair.second, c, sine); };
        lanes.each(half, StoreTo<Neighbors<T>>{pairs}, of_pair, pairs, cosines + angles,
                   sines + angles);
      } else {
        lanes.each(half, StoreTo<T, 2>{head, head + half}, values, head, head + half,
                   cosines + angles, sines + angles);
      }
    }
  }
};

/// Dropout of one row: an element is dropped if the number below 2^53 that is drawn for it is below
/// `least`.
template <class T>
struct DropRow {
  const T* x;
  const int64_t* keys;
  T* y;
  uint64_t stream, least;
  Wide<T> scale;
  int64_t width, first_column;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const uint64_t begin = mixed(mixed(static_cast<uint64_t>(keys[row])) ^ stream) +
                           static_cast<uint64_t>(first_column) * kGoldenGamma;
    const uint64_t bound = least;
    const Wide<T> factor = scale;
    const auto value = [=](int64_t i, Wide<T> of_row) ZEA_INLINE_LAMBDA {
      const uint64_t drawn = mixed(begin + static_cast<uint64_t>(i) * kGoldenGamma) >> 11;
      return drawn < bound ? Wide<T>(0) : of_row * factor;
    };
    lanes.each(width, StoreTo<T>{y + row * width}, OfPlace{value}, x + row * width);
  }
};

// Rows of tokens for experts: `places` has the row of each of a token's copies, one per expert; -1:
// the expert is on another rank.

/// Copies a token's row to one of its places. An item is a place.
template <class T>
struct SendRow {
  const T* x;
  const int64_t* places;
  T* y;
  int64_t chosen, width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    if (places[item] < 0) return;
    copy_elements(lanes, width, x + item / chosen * width, y + places[item] * width);
  }
};

/// A token's row is the sum of the rows at its places, each times its gate.
template <class T>
struct CombineRows {
  struct Row {
    int64_t begin;  ///< element
    Wide<T> gate;

    ZEA_FUNCTION bool is_absent() const { return begin < 0; }
  };

  const T* y;
  const int64_t* places;
  const Wide<T>* gates;  ///< null: all 1
  T* x;                  ///< zeros, but of bf16 anything
  int64_t chosen, width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t token) const {
    const int64_t first = token * chosen;
    const auto row_of = [=, this](int64_t r) ZEA_INLINE_LAMBDA {
      return Row{places[first + r] * width, gates ? gates[first + r] : Wide<T>(1)};
    };
    const auto term = [](const Row& row, Wide<T> value)
                          ZEA_INLINE_LAMBDA { return row.gate * value; };
    lanes.sum_rows(width, chosen, width, StoreTo<T>{x + token * width}, row_of, term, y);
  }
};

/// The gradients of a row at a place, and of its gate. An item is a place.
template <class T>
struct CombineRowBackward {
  const T *dx, *y;
  const int64_t* places;
  const Wide<T>* gates;
  T* dy;
  Wide<T>* dgates;
  int64_t chosen, width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const T* source = dx + item / chosen * width;
    const int64_t begin = places[item] * width;
    if (begin < 0) {
      if (lanes.is_first()) dgates[item] = 0;
      return;
    }
    const Wide<T> gate = gates[item];
    lanes.each(
        width, StoreTo<T>{dy + begin}, [=](Wide<T> d) ZEA_INLINE_LAMBDA { return gate * d; },
        source);
    const auto product = [](Wide<T> d, Wide<T> value) ZEA_INLINE_LAMBDA { return d * value; };
    const Wide<T> sum = lanes.template sum<Wide<T>>(width, product, source, y + begin);
    if (lanes.is_first()) dgates[item] = sum;
  }
};

// GELU and its approximations, with the bias of the linear in front of them. An item is a run of
// elements: a row, where there is a bias.

/// y = z gate(z), z = x + bias.
template <class Gate, class T>
struct GeluRun {
  const T *x, *bias;  ///< `bias`, of `width`, may be null
  T* y;
  int64_t elements, width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t begin = item * width, left = elements - begin;
    const int64_t count = left < width ? left : width;
    const T* source = x + begin;
    const StoreTo<T> store_to{y + begin};
    const auto value = [](auto... parts) ZEA_INLINE_LAMBDA {
      const Wide<T> z = (parts + ...);
      return z * Gate::at(z).gate;
    };
    if (bias)
      lanes.each(count, store_to, value, source, bias);
    else
      lanes.each(count, store_to, value, source);
  }
};

template <class Gate, class T>
struct GeluRunBackward {
  const T *dy, *x, *bias;  ///< `bias`, of `width`, may be null
  T* dx;
  int64_t elements, width;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const int64_t begin = item * width, left = elements - begin;
    const int64_t count = left < width ? left : width;
    const T *d = dy + begin, *source = x + begin;
    const StoreTo<T> store_to{dx + begin};
    const auto gradient = [](Wide<T> dy, auto... parts)
                              ZEA_INLINE_LAMBDA { return dy * Gate::at((parts + ...)).slope; };
    if (bias)
      lanes.each(count, store_to, gradient, d, source, bias);
    else
      lanes.each(count, store_to, gradient, d, source);
  }
};

// Functors over rows of a tile of logits.

/// A tile of logits (rows, columns) and the targets of its rows.
template <class T>
struct LogitRows {
  T* logits;
  const int64_t* targets;
  int64_t first, columns;  ///< the tile's columns in the vocabulary

  ZEA_FUNCTION T* row(int64_t index) const { return logits + index * columns; }
  /// The column of a row's target, or -1 where another tile has it.
  ZEA_FUNCTION int64_t place(int64_t row) const {
    const int64_t place = targets[row] - first;
    return place >= 0 && place < columns ? place : -1;
  }
};

/// Adds a row to its log-sum-exp so far.
template <class T>
struct AddLogitRow {
  LogitRows<T> tile;
  Wide<T>*maxima, *sums, *picked;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    const T* values = tile.row(row);
    const Wide<T> before = maxima[row];
    const auto as_it_is = [](Wide<T> value) ZEA_INLINE_LAMBDA { return value; };
    const Wide<T> maximum = lanes.largest(tile.columns, before, as_it_is, values);
    const auto term = [=](Wide<T> value) ZEA_INLINE_LAMBDA { return exponential(value - maximum); };
    const Wide<T> sum = lanes.template sum<Wide<T>>(tile.columns, term, values);
    if (!lanes.is_first()) return;
    const Wide<T> kept = sums[row] == 0 ? 0 : sums[row] * std::exp(before - maximum);
    sums[row] = kept + sum;
    maxima[row] = maximum;
    if (const int64_t place = tile.place(row); place >= 0) picked[row] = load(values[place]);
  }
};

/// Turns a row into its gradient.
template <class T>
struct LogitRowGradient {
  LogitRows<T> tile;
  const Wide<T>*lses, *scale;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t row) const {
    T* values = tile.row(row);
    const Wide<T> lse = lses[row], factor = *scale;
    const int64_t place = tile.place(row);
    const Wide<T> own = place < 0 ? 0 : std::exp(load(values[place]) - lse) - 1;
    lanes.sync();  // all lanes have read what one is about to overwrite
    const auto gradient = [=](Wide<T> value)
                              ZEA_INLINE_LAMBDA { return exponential(value - lse) * factor; };
    lanes.each(tile.columns, StoreTo<T>{values}, gradient, values);
    lanes.sync();
    if (place >= 0 && lanes.is_first()) store(values[place], own * factor);
  }
};

// Merging two attentions of the same queries: an item is one head of one query.

/// Elements between neighbours of a tensor (slices, queries, KV heads, query heads of each, ...).
struct StackStrides {
  int64_t slice, query, kv_head, head;
};

/// The addresses from which the items of a part, (rows, heads), are read and to which they are
/// added.
struct MergePlaces {
  const int64_t* real;  ///< each row's query in the stack; null: all, in order
  const int64_t* rows;  ///< each row's target; null: from first_row on
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
