// SPDX-License-Identifier: Apache-2.0
// Chunks of the gated delta rule in a thread's memory: the operands that forward and backward
// share, and products, triangles and rows of tiles.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/attention_operands.hpp"
#include "kernels/delta_chunks.hpp"

namespace zea::detail::delta {

/// Rows of chunks are filled up with zeros to a multiple of this, the side of a triangle that is
/// solved in registers.
inline constexpr int64_t kSide = 16;

/// A matrix in a thread's memory.
template <class W>
struct Tile {
  W* data;
  int64_t stride;

  W* row(int64_t i) const { return data + i * stride; }
  Tile from(int64_t i) const { return {row(i), stride}; }
};

/// A left matrix, as it lies or transposed.
template <class W>
struct Left {
  const W* data;
  int64_t row, inner;
};
template <class W>
Left<W> plain(const Tile<W>& tile) {
  return {tile.data, tile.stride, 1};
}
template <class W>
Left<W> transposed(const Tile<W>& tile) {
  return {tile.data, 1, tile.stride};
}

struct ProductSize {
  int64_t rows, columns, inner;
};

template <class W>
void multiply(const Left<W>& left, const Tile<W>& right, const Tile<W>& sum,
              const ProductSize& size, bool adds, const SeenPart& seen = {}) {
  multiply(TileProduct<Singles<W>>{left.data, left.row, left.inner, right.data, right.stride,
                                   sum.data, sum.stride, size.rows, size.columns, size.inner, adds,
                                   W(1), seen});
}

// Triangles: rows see themselves and what is before them.
inline constexpr SeenPart kLowerResult{Diagonal::Result, true, 0};
inline constexpr SeenPart kLowerLeft{Diagonal::LeftColumns, false, 0};
inline constexpr SeenPart kUpperLeft{Diagonal::LeftInner, false, 0};  ///< a lower one, transposed

template <class W>
ZEA_WIDE_CLONES void load_tile(const W* from, int64_t stride, int64_t rows, int64_t dim,
                               int64_t all_rows, const Tile<W>& to) {
  for (int64_t i = 0; i < rows; ++i) {
    const W* __restrict source = from + i * stride;
    W* __restrict target = to.row(i);
    for (int64_t d = 0; d < dim; ++d) target[d] = source[d];
    for (int64_t d = dim; d < to.stride; ++d) target[d] = 0;
  }
  std::fill(to.row(rows), to.row(all_rows), W(0));
}

/// decays[i][j] = exp(sums[i] - sums[j]) for j <= i, else 0.
template <class W>
ZEA_WIDE_CLONES void fill_decays(const W* __restrict sums, int64_t rows, const Tile<W>& decays) {
  for (int64_t i = 0; i < rows; ++i) {
    W* __restrict row = decays.row(i);
    const W own = sums[i];
#pragma omp simd
    for (int64_t j = 0; j < rows; ++j) row[j] = j <= i ? exponential(own - sums[j]) : W(0);
  }
}

/// products[i][j] *= factors[i] decays[i][j] for j < i, also for j = i if `keeps_diagonal`; else 0.
template <class W>
ZEA_WIDE_CLONES void weigh_pairs(const Tile<W>& decays, const W* __restrict factors, int64_t rows,
                                 bool keeps_diagonal, const Tile<W>& products) {
  for (int64_t i = 0; i < rows; ++i) {
    const W* __restrict decay = decays.row(i);
    W* __restrict row = products.row(i);
    const W factor = factors[i];
    const int64_t end = i + (keeps_diagonal ? 1 : 0);
    for (int64_t j = 0; j < end; ++j) row[j] *= factor * decay[j];
    for (int64_t j = end; j < rows; ++j) row[j] = 0;
  }
}

/// target[i] = factors[i] source[i], or adds it to target[i].
template <bool adds = false, class W>
ZEA_WIDE_CLONES void scaled_rows(const Tile<W>& source, const W* factors, int64_t rows,
                                 int64_t columns, const Tile<W>& target) {
  for (int64_t i = 0; i < rows; ++i) {
    const W* from = source.row(i);
    W* to = target.row(i);
    const W factor = factors[i];
#pragma omp simd
    for (int64_t d = 0; d < columns; ++d) to[d] = factor * from[d] + (adds ? to[d] : W(0));
  }
}

/// rest[i] = betas[i] (values[i] - decayed[i] rest[i]).
template <class W>
ZEA_WIDE_CLONES void subtract_known(const Tile<W>& values, const W* betas, const W* decayed,
                                    int64_t rows, int64_t columns, const Tile<W>& rest) {
  for (int64_t i = 0; i < rows; ++i) {
    const W* __restrict value = values.row(i);
    W* __restrict row = rest.row(i);
    const W beta = betas[i], decay = decayed[i];
    for (int64_t d = 0; d < columns; ++d) row[d] = beta * (value[d] - decay * row[d]);
  }
}

/// dots[i] += factor a[i].b[i].
template <class W>
ZEA_WIDE_CLONES void add_dots(const Tile<W>& a, const Tile<W>& b, W factor, int64_t rows,
                              int64_t columns, W* dots) {
  for (int64_t i = 0; i < rows; ++i) {
    const W* __restrict first = a.row(i);
    const W* __restrict second = b.row(i);
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < columns; ++d) sum += first[d] * second[d];
    dots[i] += factor * sum;
  }
}

/// to[i] = (adds ? to[i] : 0) + from[i] of `rows` rows of `dim` elements.
template <class W>
ZEA_WIDE_CLONES void store_tile(const Tile<W>& from, int64_t rows, int64_t dim, bool adds, W* to,
                                int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    const W* __restrict source = from.row(i);
    W* __restrict target = to + i * stride;
    if (adds)
      for (int64_t d = 0; d < dim; ++d) target[d] += source[d];
    else
      for (int64_t d = 0; d < dim; ++d) target[d] = source[d];
  }
}

/// Solves (I - triangle) x = rows for kSide rows, in place: triangle is strictly lower, or the
/// transpose of such.
template <bool kTransposed, class W>
ZEA_WIDE_CLONES void solve_side(const Tile<W>& triangle, const Tile<W>& rows, int64_t columns) {
  constexpr int64_t L = kLanes<W>;
  for (int64_t c = 0; c < columns; c += L) {
    typename LaneVector<W>::Type x[kSide];
    for (int i = 0; i < kSide; ++i) load_vector(x[i], rows.row(i) + c);
    if constexpr (kTransposed) {
#pragma GCC unroll 16
      for (int i = kSide - 1; i >= 0; --i)
        for (int j = i + 1; j < kSide; ++j) x[i] += triangle.row(j)[i] * x[j];
    } else {
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i)
        for (int j = 0; j < i; ++j) x[i] += triangle.row(i)[j] * x[j];
    }
    for (int i = 0; i < kSide; ++i) store_vector(rows.row(i) + c, x[i]);
  }
}

/// Solves (I - triangle) x = rhs for `rows` rows, a multiple of kSide, in place.
template <class W>
void solve_lower(const Tile<W>& triangle, const Tile<W>& rhs, int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i += kSide) {
    if (i > 0) multiply(plain(triangle.from(i)), rhs, rhs.from(i), {kSide, columns, i}, true);
    solve_side<false>(Tile<W>{triangle.row(i) + i, triangle.stride}, rhs.from(i), columns);
  }
}
/// The same with the triangle transposed.
template <class W>
void solve_upper(const Tile<W>& triangle, const Tile<W>& rhs, int64_t rows, int64_t columns) {
  for (int64_t i = rows - kSide; i >= 0; i -= kSide) {
    const int64_t end = i + kSide;
    if (end < rows)
      multiply(transposed(Tile<W>{triangle.row(end) + i, triangle.stride}), rhs.from(end),
               rhs.from(i), {kSide, columns, rows - end}, true);
    solve_side<true>(Tile<W>{triangle.row(i) + i, triangle.stride}, rhs.from(i), columns);
  }
}

/// A sample, and the index of the first state that forward keeps of it.
struct ScannedSample {
  int64_t begin, end, first_state;

  int64_t chunks() const { return chunks_of(end - begin); }
};

inline std::vector<ScannedSample> samples_of(const std::vector<int64_t>& bounds) {
  std::vector<ScannedSample> samples;
  int64_t states = 0;
  for (size_t s = 0; s + 1 < bounds.size(); ++s) {
    samples.push_back({bounds[s], bounds[s + 1], states});
    states += (std::max<int64_t>(1, samples.back().chunks()) - 1) / kGroupChunks;
  }
  return samples;
}

/// The tokens of a chunk and one of its heads.
struct ChunkPlace {
  int64_t token, rows, head;
};

/// The operands of one chunk and head that forward and backward share, in a thread's memory.
template <class W>
class ChunkTiles {
 public:
  ChunkTiles(const DeltaRows& rows, int64_t more_elements)
      : mixed_(elements<W>(rows.mixed)),
        shape_(rows.shape),
        key_columns_(round_to(shape_.key_dim, kSide)),
        value_columns_(round_to(shape_.value_dim, kSide)),
        memory_(kChunk * (3 * key_columns_ + 3 * value_columns_ + 3 * kChunk + 4) +
                state_elements() + more_elements),
        q{memory_.take(key_tile()), key_columns_},
        k{memory_.take(key_tile()), key_columns_},
        across{memory_.take(key_tile()), kChunk},
        changes{memory_.take(value_tile()), value_columns_},
        values{memory_.take(value_tile()), value_columns_},
        weighted{memory_.take(value_tile()), value_columns_},
        decays{memory_.take(kChunk * kChunk), kChunk},
        triangle{memory_.take(kChunk * kChunk), kChunk},
        scores{memory_.take(kChunk * kChunk), kChunk},
        sums(memory_.take(kChunk)),
        decayed(memory_.take(kChunk)),
        left(memory_.take(kChunk)),
        betas(memory_.take(kChunk)),
        state{memory_.take(state_elements()), value_columns_} {}

  int64_t key_tile() const { return kChunk * key_columns_; }
  int64_t value_tile() const { return kChunk * value_columns_; }
  int64_t state_elements() const { return key_columns_ * value_columns_; }
  int64_t value_columns() const { return value_columns_; }
  TileMemory<W>& memory() { return memory_; }
  int64_t rows() const { return rows_; }  ///< of tiles

  /// Loads keys, betas and decays, and fills decays.
  void start(const ChunkPlace& at) {
    rows_ = round_to(at.rows, kSide);
    const W* row = row_of(at.token);
    load_tile(row + shape_.key(at.head / shape_.group()), shape_.columns(), at.rows, shape_.key_dim,
              rows_, k);
    W sum = 0;
    for (int64_t i = 0; i < rows_; ++i, row += shape_.columns()) {
      const bool is_token = i < at.rows;
      betas[i] = is_token ? row[shape_.beta(at.head)] : W(0);
      sums[i] = sum += is_token ? row[shape_.decay(at.head)] : W(0);
    }
    for (int64_t i = 0; i < rows_; ++i) {
      decayed[i] = exponential(sums[i]);
      left[i] = exponential(sum - sums[i]);
    }
    fill_decays(sums, rows_, decays);
  }
  /// Makes I - A for the equation of the changes, and the keys' transpose.
  void make_triangle() {
    transpose(k.data, k.stride, rows_, key_columns_, across.data, kChunk);
    multiply(plain(k), across, triangle, {rows_, rows_, shape_.key_dim}, false, kLowerResult);
    W factors[kChunk];
    for (int64_t i = 0; i < rows_; ++i) factors[i] = -betas[i];
    weigh_pairs(decays, factors, rows_, false, triangle);
  }
  /// Makes the changes N of the state, from which there is nothing to subtract if it is zero.
  void make_changes(const ChunkPlace& at, bool has_state) {
    load_tile(row_of(at.token) + shape_.value(at.head), shape_.columns(), at.rows, shape_.value_dim,
              rows_, values);
    if (has_state)
      multiply(plain(k), state, changes, {rows_, value_columns_, shape_.key_dim}, false);
    else
      std::fill_n(changes.data, rows_ * value_columns_, W(0));
    subtract_known(values, betas, decayed, rows_, value_columns_, changes);
    solve_lower(triangle, changes, rows_, value_columns_);
  }
  void load_queries(const ChunkPlace& at) {
    load_tile(row_of(at.token) + shape_.query(at.head / shape_.group()), shape_.columns(), at.rows,
              shape_.key_dim, rows_, q);
  }
  /// Makes scores D_ij q_i.k_j for j <= i.
  void make_scores() {
    multiply(plain(q), across, scores, {rows_, rows_, shape_.key_dim}, false, kLowerResult);
    W ones[kChunk];
    std::fill_n(ones, rows_, W(1));
    weigh_pairs(decays, ones, rows_, true, scores);
  }
  /// Moves the state to the chunk's end.
  void move_state(bool has_state) {
    if (has_state)
      scale_rows(state.data, state_elements(), 0, 1, &decayed[rows_ - 1]);
    else
      std::fill_n(state.data, state_elements(), W(0));
    scaled_rows(changes, left, rows_, value_columns_, weighted);
    multiply(transposed(k), weighted, state, {shape_.key_dim, value_columns_, rows_}, true);
  }
  void load_state(const W* from) {
    load_tile(from, shape_.value_dim, shape_.key_dim, shape_.value_dim, key_columns_, state);
  }
  void store_state(W* to) const {
    store_tile(state, shape_.key_dim, shape_.value_dim, false, to, shape_.value_dim);
  }

 private:
  const W* row_of(int64_t token) const { return mixed_ + token * shape_.columns(); }

  const W* mixed_;
  const DeltaShape& shape_;
  const int64_t key_columns_, value_columns_;
  int64_t rows_ = 0;
  TileMemory<W> memory_;

 public:
  Tile<W> q, k;
  Tile<W> across;                     ///< (key_dim, chunk): the keys' transpose
  Tile<W> changes, values, weighted;  ///< weighted: changes as they are at the end of the chunk
  Tile<W> decays, triangle, scores;
  W* sums;     ///< G
  W* decayed;  ///< exp(G_i)
  W* left;     ///< exp(G_n - G_i)
  W* betas;    ///< b
  Tile<W> state;
};

template <class W>
W* state_at(const at::Tensor& states, int64_t index, int64_t head) {
  return elements<W>(states) + (index * states.size(1) + head) * states.size(2) * states.size(3);
}
/// Null where `states` are undefined.
template <class W>
W* state_or_null(const at::Tensor& states, int64_t index, int64_t head) {
  return states.defined() ? state_at<W>(states, index, head) : nullptr;
}

}  // namespace zea::detail::delta
