// SPDX-License-Identifier: Apache-2.0
// Chunks of the gated delta rule on a device (delta_batches.cpp): the part that does not depend on
// the state before a chunk, and the outputs, which do. An item is a value head of a chunk and has
// separate memory for its operands; delta_rule.hpp defines the symbols. In a product each lane
// reads and writes only its own columns, so sync() is needed only before other lanes' columns are
// read.
#pragma once

#include "core/kernel_sizes.hpp"
#include "kernels/delta_shape.hpp"
#include "kernels/lanes.hpp"

namespace zea::detail {

/// Rows of a matrix, `stride` elements apart.
template <class W>
struct MatrixRows {
  W* first;
  int64_t stride;

  ZEA_FUNCTION W* operator[](int64_t i) const { return first + i * stride; }
};

struct ProductSizes {
  int64_t rows, inner, columns;
};

/// Multiplies `left` and `right`: row i of the product is the sum over r < inner of
/// left(i, r) right[r]. It is added to to[i] if `adds`, or else replaces it.
template <class Lanes, class W, class T, class LeftOf>
ZEA_FUNCTION void multiply_rows(const Lanes& lanes, const ProductSizes& sizes, const LeftOf& left,
                                const MatrixRows<const W>& right, const MatrixRows<T>& to,
                                bool adds) {
  constexpr int kRows = 4;
  int64_t i = 0;
  for (; i + kRows <= sizes.rows; i += kRows)
    lanes.multiply(
        sizes.columns, sizes.inner, right.stride,
        StoreTo<T, kRows>{to[i], to[i + 1], to[i + 2], to[i + 3]}, adds,
        [&](int64_t r) {
          return Values<W, kRows>{left(i, r), left(i + 1, r), left(i + 2, r), left(i + 3, r)};
        },
        right.first);
  for (; i < sizes.rows; ++i)
    lanes.multiply(
        sizes.columns, sizes.inner, right.stride, StoreTo<T>{to[i]}, adds,
        [&](int64_t r) { return Values<W, 1>{left(i, r)}; }, right.first);
}

/// to[j][i] = from[i][j] for i < rows, j < columns.
template <class Lanes, class W>
ZEA_FUNCTION void transpose_rows(const Lanes& lanes, int64_t rows, int64_t columns,
                                 const MatrixRows<const W>& from, const MatrixRows<W>& to) {
  for (int64_t i = 0; i < rows; ++i)
    lanes.each(
        columns, [&](int64_t j, W value) { to[j][i] = value; },
        [](W value) ZEA_INLINE_LAMBDA { return value; }, from[i]);
}

/// The queries, keys and values of a head of a chunk: rows of `mixed`, which MixDeltaToken makes.
template <class W>
struct ChunkRows {
  const int64_t* chunks;  ///< (chunks, 2): the first token, and the number of tokens
  const W* mixed;
  DeltaShape shape;

  struct Item {
    int64_t token, rows, head;
    MatrixRows<const W> q, k, v;
  };
  ZEA_FUNCTION Item at(int64_t chunk, int64_t head) const {
    const int64_t token = chunks[chunk * 2], rows = chunks[chunk * 2 + 1];
    const int64_t key_head = head / shape.group(), columns = shape.columns();
    const W* row = mixed + token * columns;
    return {token,
            rows,
            head,
            {row + shape.query(key_head), columns},
            {row + shape.key(key_head), columns},
            {row + shape.value(head), columns}};
  }
  ZEA_FUNCTION Item of_item(int64_t item) const {
    return at(item / shape.value_heads, item % shape.value_heads);
  }
};

/// The operands of all items.
template <class W>
struct ChunkOperands {
  W* numbers;  ///< (items, 5, chunk): scalars of each token, see number()
  W* pairs;    ///< (items, 2 chunks, chunk): -b_i D_ij k_i.k_j for j < i; D_ij q_i.k_j for j <= i
  W* solved;   ///< (items, chunk, key_dim + value_dim): W and U, where N = U + W S
  W* passing;  ///< (items, key_dim, key_dim + value_dim): M and C, where S' = C + M S
  W* terms;    ///< (items, key_dim + chunk, value_dim): S, and below it N
  W* across;   ///< (items, key_dim, chunk): scratch for transposed keys
  DeltaShape shape;

  static constexpr int64_t kNumbers = 5;

  ZEA_FUNCTION W* sums(int64_t item) const { return number(item, 0); }     ///< G_i
  ZEA_FUNCTION W* decayed(int64_t item) const { return number(item, 1); }  ///< exp(G_i)
  ZEA_FUNCTION W* left(int64_t item) const { return number(item, 2); }     ///< exp(G_n - G_i)
  ZEA_FUNCTION W* betas(int64_t item) const { return number(item, 3); }    ///< b_i
  ZEA_FUNCTION W* spare(int64_t item) const { return number(item, 4); }    ///< gradients of G_i
  ZEA_FUNCTION MatrixRows<W> triangle(int64_t item) const {
    return {pairs + item * 2 * kDeltaChunk * kDeltaChunk, kDeltaChunk};
  }
  ZEA_FUNCTION MatrixRows<W> scores(int64_t item) const {
    return {triangle(item)[kDeltaChunk], kDeltaChunk};
  }
  ZEA_FUNCTION int64_t width() const { return shape.key_dim + shape.value_dim; }
  ZEA_FUNCTION MatrixRows<W> w(int64_t item) const {
    return {solved + item * kDeltaChunk * width(), width()};
  }
  ZEA_FUNCTION MatrixRows<W> u(int64_t item) const { return {w(item)[0] + shape.key_dim, width()}; }
  ZEA_FUNCTION MatrixRows<W> moves(int64_t item) const {
    return {passing + item * shape.key_dim * width(), width()};
  }
  ZEA_FUNCTION MatrixRows<W> state(int64_t item) const {
    return {terms + item * (shape.key_dim + kDeltaChunk) * shape.value_dim, shape.value_dim};
  }
  ZEA_FUNCTION MatrixRows<W> changes(int64_t item) const {
    return {state(item)[shape.key_dim], shape.value_dim};
  }

 private:
  ZEA_FUNCTION W* number(int64_t item, int64_t index) const {
    return numbers + (item * kNumbers + index) * kDeltaChunk;
  }
};

template <class W>
ZEA_FUNCTION MatrixRows<const W> read(const MatrixRows<W>& rows) {
  return {rows.first, rows.stride};
}

/// Computes an item's numbers, pairs, `solved` and `passing`.
template <class W>
struct MakeChunk {
  ChunkRows<W> from;
  ChunkOperands<W> to;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    const typename ChunkRows<W>::Item at = from.of_item(item);
    const int64_t rows = at.rows, dim = to.shape.key_dim, value_dim = to.shape.value_dim;
    const MatrixRows<W> across{to.across + item * dim * kDeltaChunk, kDeltaChunk};
    if (lanes.is_first()) make_numbers(at, item);
    transpose_rows(lanes, rows, dim, at.k, across);
    lanes.sync();
    make_pairs(lanes, at, item, across);
    lanes.sync();
    solve(lanes, at, item);
    lanes.sync();
    // M = exp(G_n) I + K^T W and C = K^T U; K has the rows exp(G_n - G_i) k_i
    const MatrixRows<W> moves = to.moves(item);
    const W* left = to.left(item);
    multiply_rows(
        lanes, {dim, rows, dim + value_dim},
        [&](int64_t d, int64_t i) { return left[i] * at.k[i][d]; }, read(to.w(item)), moves, false);
    lanes.sync();
    const W end = to.decayed(item)[rows - 1];
    lanes.each(
        dim, [&](int64_t d, W) { moves[d][d] += end; }, [](W k) ZEA_INLINE_LAMBDA { return k; },
        at.k[0]);
  }

 private:
  ZEA_FUNCTION void make_numbers(const typename ChunkRows<W>::Item& at, int64_t item) const {
    W *sums = to.sums(item), *decayed = to.decayed(item), *left = to.left(item);
    W *betas = to.betas(item), sum = 0;
    const W* row = from.mixed + at.token * to.shape.columns();
    for (int64_t i = 0; i < at.rows; ++i, row += to.shape.columns()) {
      sums[i] = sum += row[to.shape.decay(at.head)];
      betas[i] = row[to.shape.beta(at.head)];
    }
    for (int64_t i = 0; i < at.rows; ++i) {
      decayed[i] = std::exp(sums[i]);
      left[i] = std::exp(sum - sums[i]);
    }
  }
  template <class Lanes>
  ZEA_FUNCTION void make_pairs(const Lanes& lanes, const typename ChunkRows<W>::Item& at,
                               int64_t item, const MatrixRows<W>& across) const {
    const MatrixRows<W> triangle = to.triangle(item), scores = to.scores(item);
    const ProductSizes sizes{at.rows, to.shape.key_dim, at.rows};
    multiply_rows(
        lanes, sizes, [&](int64_t i, int64_t d) { return at.k[i][d]; }, read(across), triangle,
        false);
    multiply_rows(
        lanes, sizes, [&](int64_t i, int64_t d) { return at.q[i][d]; }, read(across), scores,
        false);
    const W *sums = to.sums(item), *betas = to.betas(item);
    for (int64_t i = 0; i < at.rows; ++i) {
      const W own = sums[i], factor = -betas[i];
      const auto weighed = [=](int64_t j, W above, W below, W sum) ZEA_INLINE_LAMBDA {
        const W decay = j <= i ? std::exp(own - sum) : W(0);
        return Values<W, 2>{j < i ? factor * decay * above : W(0), j <= i ? decay * below : W(0)};
      };
      lanes.each(at.rows, StoreTo<W, 2>{triangle[i], scores[i]}, OfPlace{weighed}, triangle[i],
                 scores[i], sums);
    }
  }
  /// Solves (I + A) [W U] = [-b_i exp(G_i) k_i, b_i v_i] row by row.
  template <class Lanes>
  ZEA_FUNCTION void solve(const Lanes& lanes, const typename ChunkRows<W>::Item& at,
                          int64_t item) const {
    const W *decayed = to.decayed(item), *betas = to.betas(item);
    const auto columns = [&](int64_t count, const MatrixRows<W>& solved, int64_t i, const W* row,
                             W factor) {
      const W* known = to.triangle(item)[i];
      lanes.multiply(
          count, i, solved.stride, StoreTo<W>{solved[i]}, false,
          [&](int64_t j) { return Values<W, 1>{known[j]}; }, solved.first);
      lanes.each(
          count, StoreTo<W>{solved[i]},
          [=](W sum, W value) ZEA_INLINE_LAMBDA { return sum + factor * value; }, solved[i], row);
    };
    for (int64_t i = 0; i < at.rows; ++i) {
      columns(to.shape.key_dim, to.w(item), i, at.k[i], -betas[i] * decayed[i]);
      columns(to.shape.value_dim, to.u(item), i, at.v[i], betas[i]);
    }
  }
};

/// Computes N = U + W S of an item; `has_state`: S is not zero.
template <class Lanes, class W>
ZEA_FUNCTION void make_changes(const Lanes& lanes, const ChunkOperands<W>& of, int64_t item,
                               int64_t rows, bool has_state) {
  const int64_t dim = of.shape.value_dim;
  const MatrixRows<W> changes = of.changes(item), u = of.u(item), w = of.w(item);
  multiply_rows(
      lanes, {rows, has_state ? of.shape.key_dim : 0, dim},
      [&](int64_t i, int64_t d) { return w[i][d]; }, read(of.state(item)), changes, false);
  for (int64_t i = 0; i < rows; ++i)
    lanes.each(
        dim, StoreTo<W>{changes[i]}, [](W sum, W own) ZEA_INLINE_LAMBDA { return sum + own; },
        changes[i], u[i]);
}

/// Computes the outputs o (tokens, value heads, value_dim) of items from the states before them.
template <class T>
struct StoreOutputs {
  ChunkRows<Wide<T>> from;
  ChunkOperands<Wide<T>> operands;
  int64_t stateless;  ///< number of first items with zero states
  T* o;

  template <class Lanes>
  ZEA_FUNCTION void operator()(const Lanes& lanes, int64_t item) const {
    using W = Wide<T>;
    const typename ChunkRows<W>::Item at = from.of_item(item);
    const DeltaShape& shape = from.shape;
    const bool has_state = item >= stateless;
    make_changes(lanes, operands, item, at.rows, has_state);
    lanes.sync();  // lanes own other columns of a narrower type T
    // o_i = exp(G_i) S^T q_i + sum_j D_ij q_i.k_j N_j: S and N are rows of one matrix.
    const MatrixRows<W> scores = operands.scores(item), changes = operands.changes(item);
    const W* decayed = operands.decayed(item);
    const MatrixRows<const W> right{(has_state ? operands.state(item) : changes)[0],
                                    shape.value_dim};
    const int64_t states = has_state ? shape.key_dim : 0;
    T* target = o + (at.token * shape.value_heads + at.head) * shape.value_dim;
    const auto left = [&](int64_t i, int64_t r) {
      return r < states ? decayed[i] * at.q[i][r] : scores[i][r - states];
    };
    multiply_rows(lanes, {at.rows, states + at.rows, shape.value_dim}, left, right,
                  MatrixRows<T>{target, shape.values()}, false);
  }
};

}  // namespace zea::detail
