// SPDX-License-Identifier: Apache-2.0
// Chunks of the gated delta rule between the batched GEMMs by which a device scans them
// (delta_batches.cpp): operands from rows, weights of pairs of tokens, the inverse of I + A, and
// results to rows. An item is a head of a chunk; the last rows of a short chunk are zeros. See
// delta_rule.hpp for the letters.
#pragma once

#include "core/kernel_sizes.hpp"
#include "kernels/delta_shape.hpp"
#include "kernels/lanes.hpp"

namespace zea::detail {

/// The tokens of chunks: (chunks, 2) the first token and the number of tokens; and the heads.
struct ChunkRows {
  const int64_t* chunks;
  DeltaShape shape;

  struct Item {
    int64_t token, rows, head;
  };
  ZEA_FUNCTION Item at(int64_t item, int64_t heads) const {
    const int64_t* chunk = chunks + item / heads * 2;
    return {chunk[0], chunk[1], item % heads};
  }
};

/// Numbers of each token of an item.
template <class W>
struct ChunkNumbers {
  W* all;  ///< (items, 5, kDeltaChunk)

  ZEA_FUNCTION W* sums(int64_t item) const { return row(item, 0); }       ///< G_i
  ZEA_FUNCTION W* decayed(int64_t item) const { return row(item, 1); }    ///< exp(G_i)
  ZEA_FUNCTION W* left(int64_t item) const { return row(item, 2); }       ///< exp(G_n - G_i)
  ZEA_FUNCTION W* strengths(int64_t item) const { return row(item, 3); }  ///< b_i
  ZEA_FUNCTION W* spare(int64_t item) const { return row(item, 4); }
  /// exp(G_n)
  ZEA_FUNCTION W end(int64_t item) const { return decayed(item)[kDeltaChunk - 1]; }

 private:
  ZEA_FUNCTION W* row(int64_t item, int64_t index) const {
    return all + (item * 5 + index) * kDeltaChunk;
  }
};

/// Operands of an item's GEMMs, from rows as MixDeltaToken makes them.
template <class W>
struct LoadChunk {
  ChunkRows from;
  const W* mixed;
  ChunkNumbers<W> numbers;
  W* keys;     ///< (items, 2 chunks, key_dim): k_i, and below them q_i
  W* factors;  ///< (items, 2 chunks, chunk + key_dim), beside the columns of pairs:
               ///< exp(G_n - G_i) k_i, and below them exp(G_i) q_i
  W* right;    ///< (items, chunk, key_dim + value_dim): -b_i exp(G_i) k_i, beside them b_i v_i
  W* passing;  ///< (items, key_dim, key_dim + value_dim): diagonals of exp(G_n), and zeros

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const DeltaShape& shape = from.shape;
    const ChunkRows::Item at = from.at(item, shape.value_heads);
    const W* first = mixed + at.token * shape.columns();
    if (lanes.is_first()) load_numbers(at, item, first);
    lanes.sync();
    const int64_t dim = shape.key_dim, width = dim + shape.value_dim, key_head = key_head_of(at);
    for (int64_t i = 0; i < kDeltaChunk; ++i) {
      const bool is_token = i < at.rows;
      const W* row = first + (is_token ? i * shape.columns() : 0);
      const W decayed = numbers.decayed(item)[i], left = numbers.left(item)[i];
      const W strength = numbers.strengths(item)[i];
      const int64_t k_row = item * 2 * kDeltaChunk + i, q_row = k_row + kDeltaChunk;
      W* beside = right + (item * kDeltaChunk + i) * width;
      lanes.each(
          dim, StoreTo<W, 3>{keys + k_row * dim, scaled(k_row), beside},
          [=](W k) ZEA_INLINE_LAMBDA {
            const W own = is_token ? k : W(0);
            return Values<W, 3>{own, left * own, -strength * decayed * own};
          },
          row + shape.key(key_head));
      lanes.each(
          dim, StoreTo<W, 2>{keys + q_row * dim, scaled(q_row)},
          [=](W q) ZEA_INLINE_LAMBDA {
            const W own = is_token ? q : W(0);
            return Values<W, 2>{own, decayed * own};
          },
          row + shape.query(key_head));
      lanes.each(
          shape.value_dim, StoreTo<W>{beside + dim},
          [=](W v) ZEA_INLINE_LAMBDA { return is_token ? strength * v : W(0); },
          row + shape.value(at.head));
    }
    const W end = numbers.end(item);
    for (int64_t i = 0; i < dim; ++i) {
      W* row = passing + (item * dim + i) * width;
      const auto value = [=](int64_t column, W)
                             ZEA_INLINE_LAMBDA { return column == i ? end : W(0); };
      lanes.each(width, StoreTo<W>{row}, OfPlace{value}, row);
    }
  }

 private:
  ZEA_FUNCTION W* scaled(int64_t row) const {
    return factors + row * (kDeltaChunk + from.shape.key_dim) + kDeltaChunk;
  }
  ZEA_FUNCTION int64_t key_head_of(const ChunkRows::Item& at) const {
    return at.head / from.shape.group();
  }
  ZEA_FUNCTION void load_numbers(const ChunkRows::Item& at, int64_t item, const W* row) const {
    W *sums = numbers.sums(item), *decayed = numbers.decayed(item), *left = numbers.left(item);
    W* strengths = numbers.strengths(item);
    W sum = 0;
    for (int64_t i = 0; i < kDeltaChunk; ++i, row += from.shape.columns()) {
      const bool is_token = i < at.rows;
      sum += is_token ? row[from.shape.decay(at.head)] : W(0);
      strengths[i] = is_token ? row[from.shape.strength(at.head)] : W(0);
      sums[i] = sum;
    }
    for (int64_t i = 0; i < kDeltaChunk; ++i) {
      decayed[i] = std::exp(sums[i]);
      left[i] = std::exp(sum - sums[i]);
    }
  }
};

/// Multiplies pairs (items, 2 chunks, chunk), whose rows are `stride` elements apart, in place: the
/// upper ones by -b_i D_ij for j < i, the lower ones by D_ij for j <= i; others become zeros.
template <class W>
struct WeighPairs {
  ChunkNumbers<W> numbers;
  W* pairs;
  int64_t stride;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const W *sums = numbers.sums(item), *strengths = numbers.strengths(item);
    for (int64_t i = 0; i < kDeltaChunk; ++i) {
      W* upper = pairs + (item * 2 * kDeltaChunk + i) * stride;
      W* lower = upper + kDeltaChunk * stride;
      const W own = sums[i], factor = -strengths[i];
      const auto weighed = [=](int64_t j, W above, W below, W sum) ZEA_INLINE_LAMBDA {
        const W decay = j <= i ? std::exp(own - sum) : W(0);
        return Values<W, 2>{j < i ? factor * decay * above : W(0), j <= i ? decay * below : W(0)};
      };
      lanes.each(kDeltaChunk, StoreTo<W, 2>{upper, lower}, OfPlace{weighed}, upper, lower, sums);
    }
  }
};

/// WeighPairs, and the inverses (items, chunk, chunk) of I + A, whose A is minus the upper pairs.
template <class W>
struct SolveChunk {
  WeighPairs<W> weigh;
  W* inverse;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    weigh(lanes, item);
    lanes.sync();
    const int64_t stride = weigh.stride;
    const W* triangle = weigh.pairs + item * 2 * kDeltaChunk * stride;
    W* rows = inverse + item * kDeltaChunk * kDeltaChunk;
    // Each lane reads of the rows above what it wrote itself.
    for (int64_t i = 0; i < kDeltaChunk; ++i) {
      const auto value = [=](int64_t column, W) ZEA_INLINE_LAMBDA {
        W sum = column == i ? W(1) : W(0);
        for (int64_t j = column; j < i; ++j)
          sum += triangle[i * stride + j] * rows[j * kDeltaChunk + column];
        return sum;
      };
      lanes.each(kDeltaChunk, StoreTo<W>{rows + i * kDeltaChunk}, OfPlace{value}, triangle);
    }
  }
};

/// Rows of outputs' gradients (tokens, value heads, value_dim) -> (items, 2 chunks, value_dim),
/// below; and zeros (items, key_dim, value_dim).
template <class W>
struct LoadOutputGradients {
  ChunkRows from;
  const W* rows;
  W *to, *zeros;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const DeltaShape& shape = from.shape;
    const ChunkRows::Item at = from.at(item, shape.value_heads);
    const W* first = rows + (at.token * shape.value_heads + at.head) * shape.value_dim;
    W* target = to + (item * 2 + 1) * kDeltaChunk * shape.value_dim;
    for (int64_t i = 0; i < kDeltaChunk; ++i, target += shape.value_dim) {
      const bool is_token = i < at.rows;
      lanes.each(
          shape.value_dim, StoreTo<W>{target},
          [=](W value) ZEA_INLINE_LAMBDA { return is_token ? value : W(0); },
          first + (is_token ? i * shape.values() : 0));
    }
    const int64_t state = shape.key_dim * shape.value_dim;
    W* zero = zeros + item * state;
    lanes.each(
        state, StoreTo<W>{zero}, [](W) ZEA_INLINE_LAMBDA { return W(0); }, zero);
  }
};

/// (items, chunk, value_dim) -> outputs (tokens, value heads, value_dim).
template <class T>
struct StoreOutputs {
  ChunkRows from;
  const Wide<T>* items;
  T* rows;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const DeltaShape& shape = from.shape;
    const ChunkRows::Item at = from.at(item, shape.value_heads);
    const Wide<T>* source = items + item * kDeltaChunk * shape.value_dim;
    T* target = rows + (at.token * shape.value_heads + at.head) * shape.value_dim;
    for (int64_t i = 0; i < at.rows; ++i, source += shape.value_dim, target += shape.values())
      lanes.each(
          shape.value_dim, StoreTo<T>{target},
          [](Wide<T> value) ZEA_INLINE_LAMBDA { return value; }, source);
  }
};

/// Gradients of rows of `mixed` from those of an item's parts. An item is here a key head of a
/// chunk, whose value heads add to the gradients of its queries and keys.
template <class W>
struct StoreChunkGradients {
  ChunkRows from;
  ChunkNumbers<W> numbers;
  const W* keys;       ///< as LoadChunk makes them
  const W* terms;      ///< (items, chunk + key_dim, value_dim): N, and below them S
  const W* outer;      ///< (items, 2 chunks, value_dim): dR, and below them dO
  const W* d_factors;  ///< (items, 2 chunks, chunk + key_dim): outer N^T, and beside them outer S^T
  const W* with_pairs;  ///< (items, 2 chunks, key_dim): weighed pairs' gradients times k
  const W* from_pairs;  ///< (items, chunk, key_dim): their transposes times k and q
  const W* from_end;    ///< (items, chunk, key_dim): N dS'^T
  const W* dstates;     ///< (items, key_dim, value_dim): dS' at the chunk's end
  W* dmixed;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t index) const {
    const DeltaShape& shape = from.shape;
    const ChunkRows::Item at = from.at(index, shape.key_heads);
    const int64_t first = index / shape.key_heads * shape.value_heads + at.head * shape.group();
    for (int64_t i = 0; i < shape.group(); ++i)
      of_head(lanes, {at.token, at.rows, at.head * shape.group() + i}, first + i, i > 0);
  }

 private:
  template <class Lanes>
  ZEA_FUNCTION void of_head(const Lanes& lanes, const ChunkRows::Item& at, int64_t item,
                            bool adds) const {
    const DeltaShape& shape = from.shape;
    const int64_t dim = shape.key_dim, key_head = at.head / shape.group();
    W* sums = numbers.spare(item);
    W of_end = 0;
    for (int64_t i = 0; i < at.rows; ++i) {
      const W decayed = numbers.decayed(item)[i], left = numbers.left(item)[i];
      const W before = -numbers.strengths(item)[i] * decayed;
      const int64_t upper = (item * 2 * kDeltaChunk + i) * dim, lower = upper + kDeltaChunk * dim;
      const int64_t one = (item * kDeltaChunk + i) * dim;
      const W* with_upper =
          d_factors + (item * 2 * kDeltaChunk + i) * (kDeltaChunk + dim) + kDeltaChunk;
      const W* with_lower = with_upper + kDeltaChunk * (kDeltaChunk + dim);
      W* row = dmixed + (at.token + i) * shape.columns();
      W *dq = row + shape.query(key_head), *dk = row + shape.key(key_head);
      const auto of_query = [=](W state, W pair)
                                ZEA_INLINE_LAMBDA { return decayed * state + pair; };
      const auto along_query = [=](W q, W state, W pair)
                                   ZEA_INLINE_LAMBDA { return q * of_query(state, pair); };
      lanes.each(
          dim, StoreTo<W>{dq},
          [=](W old, W state, W pair)
              ZEA_INLINE_LAMBDA { return (adds ? old : W(0)) + of_query(state, pair); },
          dq, with_lower, with_pairs + lower);
      lanes.each(
          dim, StoreTo<W>{dk},
          [=](W old, W state, W pair, W other, W end) ZEA_INLINE_LAMBDA {
            return (adds ? old : W(0)) + before * state + pair + other + left * end;
          },
          dk, with_upper, with_pairs + upper, from_pairs + one, from_end + one);
      // G_i stands with q_i and with the k_i that meets what is before it, -G_i with the other one,
      // the last G with the state at the end.
      const auto of_key = [=](W k, W state, W pair, W other, W end) ZEA_INLINE_LAMBDA {
        const W after = k * left * end;
        return Values<W, 2>{k * (before * state + pair - other) - after, after};
      };
      const Values<W, 2> keyed =
          lanes.template two_sums<W>(dim, of_key, keys + upper, with_upper, with_pairs + upper,
                                     from_pairs + one, from_end + one);
      const W queried =
          lanes.template sum<W>(dim, along_query, keys + lower, with_lower, with_pairs + lower);
      of_end += keyed.of[1];
      store_value(lanes, at, item, i, row);
      if (lanes.is_first()) sums[i] = queried + keyed.of[0];
    }
    const auto product = [](W a, W b) ZEA_INLINE_LAMBDA { return a * b; };
    const int64_t state = dim * shape.value_dim;
    const W* own = terms + item * (kDeltaChunk * shape.value_dim + state);
    of_end += numbers.end(item) * lanes.template sum<W>(state, product,
                                                        own + kDeltaChunk * shape.value_dim,
                                                        dstates + item * state);
    if (!lanes.is_first()) return;
    W sum = of_end;  // g_i is in G_i and all later ones
    for (int64_t i = at.rows - 1; i >= 0; --i) {
      sum += sums[i];
      dmixed[(at.token + i) * shape.columns() + shape.decay(at.head)] = sum;
    }
  }

  /// Gradients of v_i, and of the logit of b_i.
  template <class Lanes>
  ZEA_FUNCTION void store_value(const Lanes& lanes, const ChunkRows::Item& at, int64_t item,
                                int64_t i, W* row) const {
    const DeltaShape& shape = from.shape;
    const W strength = numbers.strengths(item)[i];
    const W* d = outer + (item * 2 * kDeltaChunk + i) * shape.value_dim;
    const W* change = terms + (item * (kDeltaChunk + shape.key_dim) + i) * shape.value_dim;
    lanes.each(
        shape.value_dim, StoreTo<W>{row + shape.value(at.head)},
        [=](W d) ZEA_INLINE_LAMBDA { return strength * d; }, d);
    const auto product = [](W a, W b) ZEA_INLINE_LAMBDA { return a * b; };
    const W along = lanes.template sum<W>(shape.value_dim, product, d, change);
    if (lanes.is_first()) row[shape.strength(at.head)] = (1 - strength) * along;
  }
};

}  // namespace zea::detail
