// SPDX-License-Identifier: Apache-2.0
// Gradients of chunks of the gated delta rule on a device: first the operands that pass gradients
// of states back from chunk to chunk, then the gradients of rows. See delta_chunk_functors.hpp.
#pragma once

#include "kernels/delta_chunk_functors.hpp"

namespace zea::detail {

/// Gradients of items: d_changes and adds depend on no other chunk; d_ends are the gradients of the
/// states after chunks, which backward passes from chunk to chunk.
template <class W>
struct ChunkGradients {
  const W* d_o;  ///< (tokens, value heads, value_dim)
  W* d_changes;  ///< (items, chunk, value_dim): Y = scores^T dO
  W* adds;       ///< (items, key_dim, value_dim): (exp(G) q)^T dO + W^T Y
  W* d_ends;     ///< (items, key_dim, value_dim): dS'

  ZEA_FUNCTION MatrixRows<const W> outputs(const typename ChunkRows<W>::Item& at,
                                           const DeltaShape& shape) const {
    return {d_o + (at.token * shape.value_heads + at.head) * shape.value_dim, shape.values()};
  }
  ZEA_FUNCTION MatrixRows<W> changes(int64_t item, const DeltaShape& shape) const {
    return {d_changes + item * kDeltaChunk * shape.value_dim, shape.value_dim};
  }
  ZEA_FUNCTION MatrixRows<W> end(int64_t item, const DeltaShape& shape) const {
    return {d_ends + item * shape.key_dim * shape.value_dim, shape.value_dim};
  }
};

/// Runs MakeChunk, computes d_changes and adds of ChunkGradients, and zeroes d_ends.
template <class W>
struct MakeChunkBackward {
  MakeChunk<W> make;
  ChunkGradients<W> gradients;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    make(lanes, item);
    const DeltaShape& shape = make.to.shape;
    const typename ChunkRows<W>::Item at = make.from.of_item(item);
    const MatrixRows<const W> d_o = gradients.outputs(at, shape);
    const MatrixRows<W> d_changes = gradients.changes(item, shape);
    const MatrixRows<W> scores = make.to.scores(item), w = make.to.w(item);
    const W* decayed = make.to.decayed(item);
    const int64_t dim = shape.value_dim, state = shape.key_dim * dim;
    multiply_rows(
        lanes, {at.rows, at.rows, dim}, [&](int64_t j, int64_t i) { return scores[i][j]; }, d_o,
        d_changes, false);
    const MatrixRows<W> adds{gradients.adds + item * state, dim};
    multiply_rows(
        lanes, {shape.key_dim, at.rows, dim},
        [&](int64_t d, int64_t i) { return decayed[i] * at.q[i][d]; }, d_o, adds, false);
    multiply_rows(
        lanes, {shape.key_dim, at.rows, dim}, [&](int64_t d, int64_t i) { return w[i][d]; },
        read(d_changes), adds, true);
    W* zeros = gradients.end(item, shape)[0];
    lanes.each(
        state, StoreTo<W>{zeros}, [](W) ZEA_INLINE_LAMBDA { return W(0); }, zeros);
  }
};

/// Scratch tiles of a key head of a chunk, which its value heads use one after the other.
template <class W>
struct GradientTiles {
  W* all;  ///< (chunks x key heads, elements(shape))
  DeltaShape shape;

  static constexpr int64_t kPairs = kDeltaChunk * kDeltaChunk;

  ZEA_FUNCTION static int64_t elements(const DeltaShape& shape) {
    return 2 * kPairs + kDeltaChunk * (3 * shape.key_dim + shape.value_dim) +
           2 * shape.key_dim * shape.value_dim;
  }
  struct Tiles {
    MatrixRows<W> upper, lower;       ///< (chunk, chunk): gradients of pairs
    MatrixRows<W> dq, before, after;  ///< (chunk, key_dim)
    MatrixRows<W> changes;            ///< (value_dim, chunk): N^T
    MatrixRows<W> state, end;         ///< (value_dim, key_dim): S^T, dS'^T
  };
  ZEA_FUNCTION Tiles of(int64_t index) const {
    const int64_t dim = shape.key_dim, keys = kDeltaChunk * dim;
    W* first = all + index * elements(shape);
    W* of_keys = first + 2 * kPairs;
    W* across = of_keys + 3 * keys;
    W* states = across + kDeltaChunk * shape.value_dim;
    return {{first, kDeltaChunk},
            {first + kPairs, kDeltaChunk},
            {of_keys, dim},
            {of_keys + keys, dim},
            {of_keys + 2 * keys, dim},
            {across, kDeltaChunk},
            {states, dim},
            {states + dim * shape.value_dim, dim}};
  }
};

/// Computes the gradients of rows of `mixed`. Here an item is a key head of a chunk, since its
/// value heads add to the same gradients of queries and keys.
template <class W>
struct StoreChunkGradients {
  ChunkRows<W> from;
  ChunkOperands<W> operands;
  ChunkGradients<W> gradients;
  GradientTiles<W> tiles;
  int64_t stateless;  ///< number of first value heads of chunks with zero states
  W* dmixed;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t index) const {
    const DeltaShape& shape = from.shape;
    const int64_t chunk = index / shape.key_heads, first = index % shape.key_heads * shape.group();
    const Tiles t = tiles.of(index);
    for (int64_t i = 0; i < shape.group(); ++i) {
      const Item at = from.at(chunk, first + i);
      const int64_t item = chunk * shape.value_heads + at.head;
      make_value_gradients(lanes, at, item, t);
      lanes.sync();
      make_pairs(lanes, at, item, t);
      lanes.sync();
      const W of_end = make_key_gradients(lanes, at, item, t);
      store(lanes, at, item, t, i > 0);
      lanes.sync();
      if (lanes.is_first()) store_decays(at, item, of_end);
    }
  }

 private:
  using Item = typename ChunkRows<W>::Item;
  using Tiles = typename GradientTiles<W>::Tiles;

  ZEA_FUNCTION int64_t state_dim(int64_t item) const {
    return item < stateless ? 0 : from.shape.value_dim;
  }

  /// Computes N, replaces Y by dR = (I + A)^-T (Y + K dS'), and transposes N, S and dS'.
  template <class Lanes>
  ZEA_FUNCTION void make_value_gradients(const Lanes& lanes, const Item& at, int64_t item,
                                         const Tiles& t) const {
    const DeltaShape& shape = from.shape;
    const int64_t dim = shape.value_dim;
    make_changes(lanes, operands, item, at.rows, item >= stateless);
    transpose_rows(lanes, at.rows, dim, read(operands.changes(item)), t.changes);
    const MatrixRows<const W> end = read(gradients.end(item, shape));
    transpose_rows(lanes, shape.key_dim, dim, end, t.end);
    if (item >= stateless)
      transpose_rows(lanes, shape.key_dim, dim, read(operands.state(item)), t.state);
    const MatrixRows<W> d = gradients.changes(item, shape), triangle = operands.triangle(item);
    const W* left = operands.left(item);
    multiply_rows(
        lanes, {at.rows, shape.key_dim, dim},
        [&](int64_t i, int64_t r) { return left[i] * at.k[i][r]; }, end, d, true);
    for (int64_t i = at.rows - 2; i >= 0; --i)
      lanes.multiply(
          dim, at.rows - 1 - i, d.stride, StoreTo<W>{d[i]}, true,
          [&](int64_t r) { return Values<W, 1>{triangle[i + 1 + r][i]}; }, d[i + 1]);
  }
  /// Computes the gradients of the products k_i.k_j and q_i.k_j for j <= i.
  template <class Lanes>
  ZEA_FUNCTION void make_pairs(const Lanes& lanes, const Item& at, int64_t item,
                               const Tiles& t) const {
    const MatrixRows<const W> d_o = gradients.outputs(at, from.shape);
    const MatrixRows<W> d = gradients.changes(item, from.shape);
    const ProductSizes sizes{at.rows, from.shape.value_dim, at.rows};
    multiply_rows(
        lanes, sizes, [&](int64_t i, int64_t c) { return d[i][c]; }, read(t.changes), t.upper,
        false);
    multiply_rows(
        lanes, sizes, [&](int64_t i, int64_t c) { return d_o[i][c]; }, read(t.changes), t.lower,
        false);
    const W *sums = operands.sums(item), *betas = operands.betas(item);
    for (int64_t i = 0; i < at.rows; ++i) {
      const W own = sums[i], factor = -betas[i];
      const auto weighed = [=](int64_t j, W above, W below, W sum) ZEA_INLINE_LAMBDA {
        const W decay = j <= i ? std::exp(own - sum) : W(0);
        return Values<W, 2>{factor * decay * above, decay * below};
      };
      lanes.each(at.rows, StoreTo<W, 2>{t.upper[i], t.lower[i]}, OfPlace{weighed}, t.upper[i],
                 t.lower[i], sums);
    }
  }
  /// Computes gradients of queries (dq) and of keys: from products with the state and keys before
  /// them (`before`), and with tokens and the state after them (`after`), without products of a
  /// token with itself. Returns the gradient of G_n from the state after the chunk.
  template <class Lanes>
  ZEA_FUNCTION W make_key_gradients(const Lanes& lanes, const Item& at, int64_t item,
                                    const Tiles& t) const {
    const MatrixRows<const W> d_o = gradients.outputs(at, from.shape);
    const MatrixRows<W> d = gradients.changes(item, from.shape), n = operands.changes(item);
    const W *decayed = operands.decayed(item), *left = operands.left(item);
    const W* betas = operands.betas(item);
    const int64_t rows = at.rows, dim = from.shape.key_dim;
    const ProductSizes with_state{rows, state_dim(item), dim}, with_pairs{rows, rows, dim};
    multiply_rows(
        lanes, with_state, [&](int64_t i, int64_t c) { return decayed[i] * d_o[i][c]; },
        read(t.state), t.dq, false);
    multiply_rows(
        lanes, with_pairs, [&](int64_t i, int64_t j) { return j < i ? t.lower[i][j] : W(0); }, at.k,
        t.dq, true);
    multiply_rows(
        lanes, with_state, [&](int64_t i, int64_t c) { return -betas[i] * decayed[i] * d[i][c]; },
        read(t.state), t.before, false);
    multiply_rows(
        lanes, with_pairs, [&](int64_t i, int64_t j) { return j < i ? t.upper[i][j] : W(0); }, at.k,
        t.before, true);
    multiply_rows(
        lanes, {rows, from.shape.value_dim, dim},
        [&](int64_t i, int64_t c) { return left[i] * n[i][c]; }, read(t.end), t.after, false);
    const auto product = [](W a, W b) ZEA_INLINE_LAMBDA { return a * b; };
    W of_end = 0;
    for (int64_t i = 0; i < rows; ++i)
      of_end += lanes.template sum<W>(dim, product, at.k[i], t.after[i]);
    multiply_rows(
        lanes, with_pairs, [&](int64_t j, int64_t i) { return i > j ? t.upper[i][j] : W(0); }, at.k,
        t.after, true);
    multiply_rows(
        lanes, with_pairs, [&](int64_t j, int64_t i) { return i > j ? t.lower[i][j] : W(0); }, at.q,
        t.after, true);
    if (item < stateless) return of_end;
    return of_end + decayed[rows - 1] * lanes.template sum<W>(dim * from.shape.value_dim, product,
                                                              operands.state(item)[0],
                                                              gradients.end(item, from.shape)[0]);
  }

  /// Stores all gradients except those of decays, and the gradients of G_i in `spare`.
  template <class Lanes>
  ZEA_FUNCTION void store(const Lanes& lanes, const Item& at, int64_t item, const Tiles& t,
                          bool adds) const {
    const DeltaShape& shape = from.shape;
    const int64_t key_head = at.head / shape.group();
    const MatrixRows<W> d = gradients.changes(item, shape), n = operands.changes(item);
    const auto product = [](W a, W b) ZEA_INLINE_LAMBDA { return a * b; };
    // exp(G_i) scales q_i, and k_i in products with earlier tokens; exp(-G_i) scales k_i in
    // products with later ones. In products of a token with itself they cancel, so these are left
    // out.
    const auto of_sum = [](W q, W k, W dq, W before, W after)
                            ZEA_INLINE_LAMBDA { return q * dq + k * (before - after); };
    for (int64_t i = 0; i < at.rows; ++i) {
      W* row = dmixed + (at.token + i) * shape.columns();
      const W sum = lanes.template sum<W>(shape.key_dim, of_sum, at.q[i], at.k[i], t.dq[i],
                                          t.before[i], t.after[i]);
      const W own = t.lower[i][i], beta = operands.betas(item)[i];
      W *dq = row + shape.query(key_head), *dk = row + shape.key(key_head);
      lanes.each(
          shape.key_dim, StoreTo<W, 2>{dq, dk},
          [=](W old_q, W old_k, W q, W k, W dq, W before, W after) ZEA_INLINE_LAMBDA {
            return Values<W, 2>{(adds ? old_q : W(0)) + dq + own * k,
                                (adds ? old_k : W(0)) + before + after + own * q};
          },
          dq, dk, at.q[i], at.k[i], t.dq[i], t.before[i], t.after[i]);
      lanes.each(
          shape.value_dim, StoreTo<W>{row + shape.value(at.head)},
          [=](W d) ZEA_INLINE_LAMBDA { return beta * d; }, d[i]);
      const W along = lanes.template sum<W>(shape.value_dim, product, d[i], n[i]);
      if (!lanes.is_first()) continue;
      row[shape.beta(at.head)] = (1 - beta) * along;
      operands.spare(item)[i] = sum;
    }
  }
  /// Stores the gradients of g_i, each the sum of the gradients of G_i and later sums.
  ZEA_FUNCTION void store_decays(const Item& at, int64_t item, W of_end) const {
    W sum = of_end;
    for (int64_t i = at.rows - 1; i >= 0; --i) {
      sum += operands.spare(item)[i];
      dmixed[(at.token + i) * from.shape.columns() + from.shape.decay(at.head)] = sum;
    }
  }
};

}  // namespace zea::detail
