// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta_chunks.hpp"

#include <algorithm>

#include "kernels/attention_operands.hpp"
#include "kernels/delta_rule.hpp"

namespace zea::detail {
namespace {

constexpr int64_t kChunk = kDeltaChunk, kGroupChunks = kDeltaStateTokens / kDeltaChunk;
/// Rows of chunks are filled up with zeros to a multiple of this, the side of a triangle that is
/// solved in registers.
constexpr int64_t kSide = 16;

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
constexpr SeenPart kLowerResult{Diagonal::Result, true, 0};
constexpr SeenPart kLowerLeft{Diagonal::LeftColumns, false, 0};
constexpr SeenPart kUpperLeft{Diagonal::LeftInner, false, 0};  ///< a lower one, transposed

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

/// target[i] = factors[i] source[i].
template <class W>
ZEA_WIDE_CLONES void scaled_rows(const Tile<W>& source, const W* factors, int64_t rows,
                                 int64_t columns, const Tile<W>& target) {
  for (int64_t i = 0; i < rows; ++i) {
    const W* from = source.row(i);
    W* to = target.row(i);
    const W factor = factors[i];
#pragma omp simd
    for (int64_t d = 0; d < columns; ++d) to[d] = factor * from[d];
  }
}

/// rest[i] = strengths[i] (values[i] - decayed[i] rest[i]).
template <class W>
ZEA_WIDE_CLONES void subtract_known(const Tile<W>& values, const W* strengths, const W* decayed,
                                    int64_t rows, int64_t columns, const Tile<W>& rest) {
  for (int64_t i = 0; i < rows; ++i) {
    const W* __restrict value = values.row(i);
    W* __restrict row = rest.row(i);
    const W strength = strengths[i], decay = decayed[i];
    for (int64_t d = 0; d < columns; ++d) row[d] = strength * (value[d] - decay * row[d]);
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
    if (i > 0)
      multiply(plain(triangle.from(i)), rhs, rhs.from(i), {kSide, columns, i}, true);
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

int64_t chunks_of(int64_t tokens) {
  return parts_of(tokens, kChunk);
}

/// A sample, and the index of the first state that forward keeps of it.
struct ScannedSample {
  int64_t begin, end, first_state;

  int64_t chunks() const { return chunks_of(end - begin); }
};

std::vector<ScannedSample> samples_of(const std::vector<int64_t>& bounds) {
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
        strengths(memory_.take(kChunk)),
        state{memory_.take(state_elements()), value_columns_} {}

  int64_t key_tile() const { return kChunk * key_columns_; }
  int64_t value_tile() const { return kChunk * value_columns_; }
  int64_t state_elements() const { return key_columns_ * value_columns_; }
  int64_t key_columns() const { return key_columns_; }
  int64_t value_columns() const { return value_columns_; }
  TileMemory<W>& memory() { return memory_; }
  int64_t rows() const { return rows_; }  ///< of tiles

  /// Loads keys, strengths and decays, and fills decays.
  void start(const ChunkPlace& at) {
    rows_ = round_to(at.rows, kSide);
    const W* row = row_of(at.token);
    load_tile(row + shape_.key(at.head / shape_.group()), shape_.columns(), at.rows,
              shape_.key_dim, rows_, k);
    W sum = 0;
    for (int64_t i = 0; i < rows_; ++i, row += shape_.columns()) {
      const bool is_token = i < at.rows;
      strengths[i] = is_token ? row[shape_.strength(at.head)] : W(0);
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
    for (int64_t i = 0; i < rows_; ++i) factors[i] = -strengths[i];
    weigh_pairs(decays, factors, rows_, false, triangle);
  }
  /// Makes the changes N of the state, from which there is nothing to subtract if it is zero.
  void make_changes(const ChunkPlace& at, bool has_state) {
    load_tile(row_of(at.token) + shape_.value(at.head), shape_.columns(), at.rows,
              shape_.value_dim, rows_, values);
    if (has_state)
      multiply(plain(k), state, changes, {rows_, value_columns_, shape_.key_dim}, false);
    else
      std::fill_n(changes.data, rows_ * value_columns_, W(0));
    subtract_known(values, strengths, decayed, rows_, value_columns_, changes);
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
  W* sums;       ///< G
  W* decayed;    ///< exp(G_i)
  W* left;       ///< exp(G_n - G_i)
  W* strengths;  ///< b
  Tile<W> state;
};

template <class W>
W* state_at(const at::Tensor& states, int64_t index, int64_t head) {
  return elements<W>(states) + (index * states.size(1) + head) * states.size(2) * states.size(3);
}

template <class W>
class ForwardChunks {
 public:
  ForwardChunks(const DeltaRows& rows, const at::Tensor& o)
      : shape_(rows.shape), o_(o.view({o.size(0), shape_.value_heads, shape_.value_dim})),
        tiles_(rows, 0) {}

  void run(const ScannedSample& sample, int64_t head, const at::Tensor& states, W* last) {
    for (int64_t c = 0; c < sample.chunks(); ++c) {
      if (c > 0 && c % kGroupChunks == 0)
        tiles_.store_state(
            state_at<W>(states, sample.first_state + c / kGroupChunks - 1, head));
      const int64_t token = sample.begin + c * kChunk;
      const bool is_last = token + kChunk >= sample.end;
      run_chunk({token, std::min(kChunk, sample.end - token), head}, c > 0, last || !is_last);
    }
    if (last) tiles_.store_state(last);
  }

 private:
  void run_chunk(const ChunkPlace& at, bool has_state, bool moves_state) {
    ChunkTiles<W>& t = tiles_;
    t.start(at);
    t.make_triangle();
    t.make_changes(at, has_state);
    t.load_queries(at);
    t.make_scores();
    const Tile<W>& out = t.values;
    if (has_state) {
      multiply(plain(t.q), t.state, out, {t.rows(), t.value_columns(), shape_.key_dim}, false);
      scale_rows(out.data, out.stride, 0, t.rows(), t.decayed);
    }
    multiply(plain(t.scores), t.changes, out, {t.rows(), t.value_columns(), t.rows()}, has_state,
             kLowerLeft);
    store_rows<W>({out.data, at.rows, shape_.value_dim, out.stride}, W(1), false, o_, at.token,
                  at.head);
    if (moves_state) t.move_state(has_state);
  }

  const DeltaShape& shape_;
  const HeadTensor o_;
  ChunkTiles<W> tiles_;
};

template <class W>
class BackwardChunks {
 public:
  BackwardChunks(const DeltaRows& rows, const at::Tensor& d_o, const at::Tensor& dmixed)
      : shape_(rows.shape),
        d_o_(elements<W>(d_o)),
        dmixed_(elements<W>(dmixed)),
        tiles_(rows, more_elements(shape_)),
        of_key_(round_to(shape_.key_dim, kSide)),
        of_value_(round_to(shape_.value_dim, kSide)) {
    const auto take = [&](int64_t rows, int64_t columns) {
      return Tile<W>{tiles_.memory().take(rows * columns), columns};
    };
    for (Kept& kept : kept_) {
      kept.changes = take(kChunk, of_value_);
      kept.triangle = take(kChunk, kChunk);
      kept.state = take(of_value_, of_key_);
    }
    d_o_tile_ = take(kChunk, of_value_);
    rhs_ = take(kChunk, of_value_);
    scaled_ = take(kChunk, of_value_);
    changes_across_ = take(of_value_, kChunk);
    pairs_ = take(kChunk, kChunk);
    query_pairs_ = take(kChunk, kChunk);
    dq_ = take(kChunk, of_key_);
    dk_before_ = take(kChunk, of_key_);
    dk_after_ = take(kChunk, of_key_);
    dstate_ = take(of_key_, of_value_);
    dstate_across_ = take(of_value_, of_key_);
    end_state_ = take(of_value_, of_key_);
    dsums_ = tiles_.memory().take(kChunk);
    dstrengths_ = tiles_.memory().take(kChunk);
  }

  /// `adds`: to the gradients of the key head.
  void run(const ScannedSample& sample, int64_t head, const at::Tensor& states, bool adds) {
    const int64_t chunks = sample.chunks(), groups = parts_of(chunks, kGroupChunks);
    for (int64_t g = groups - 1; g >= 0; --g) {
      const int64_t first = g * kGroupChunks, count = std::min(kGroupChunks, chunks - first);
      if (g > 0) tiles_.load_state(state_at<W>(states, sample.first_state + g - 1, head));
      const auto place = [&](int64_t c) {
        const int64_t token = sample.begin + (first + c) * kChunk;
        return ChunkPlace{token, std::min(kChunk, sample.end - token), head};
      };
      for (int64_t c = 0; c < count; ++c)
        run_forward(place(c), kept_[c], first + c > 0, c + 1 < count || g + 1 < groups);
      if (g + 1 < groups) keep_state(end_state_);
      for (int64_t c = count - 1; c >= 0; --c)
        run_backward(place(c), kept_[c], c + 1 < count ? kept_[c + 1].state : end_state_,
                     first + c > 0, first + c + 1 < chunks, adds);
    }
  }

 private:
  /// What backward reads of a chunk's forward.
  struct Kept {
    Tile<W> changes, triangle;
    Tile<W> state;  ///< before it, (value_dim, key_dim)
  };

  static int64_t more_elements(const DeltaShape& shape) {
    const int64_t key = round_to(shape.key_dim, kSide), value = round_to(shape.value_dim, kSide);
    return kGroupChunks * (kChunk * (value + kChunk) + key * value) +
           kChunk * (4 * value + 3 * key + 2 * kChunk + 2) + 3 * key * value;
  }

  void keep_state(const Tile<W>& to) {
    transpose(tiles_.state.data, tiles_.state.stride, of_key_, of_value_, to.data, to.stride);
  }

  void run_forward(const ChunkPlace& at, const Kept& kept, bool has_state, bool moves_state) {
    ChunkTiles<W>& t = tiles_;
    t.start(at);
    t.make_triangle();
    t.make_changes(at, has_state);
    if (has_state) keep_state(kept.state);
    std::copy_n(t.changes.data, t.rows() * of_value_, kept.changes.data);
    std::copy_n(t.triangle.data, t.rows() * kChunk, kept.triangle.data);
    if (moves_state) t.move_state(has_state);
  }

  /// `has_end`: the state at the chunk's end, `end_state`, has a gradient.
  void run_backward(const ChunkPlace& at, const Kept& kept, const Tile<W>& end_state,
                    bool has_state, bool has_end, bool adds) {
    ChunkTiles<W>& t = tiles_;
    t.start(at);
    t.load_queries(at);
    transpose(t.k.data, t.k.stride, t.rows(), of_key_, t.across.data, kChunk);
    t.make_scores();
    const int64_t rows = t.rows(), dim = shape_.key_dim, value_dim = shape_.value_dim;
    load_tile(d_o_ + at.token * shape_.values() + at.head * value_dim, shape_.values(), at.rows,
              value_dim, rows, d_o_tile_);
    // dR = (I + A)^-T dN
    if (has_end) {
      transpose(dstate_.data, dstate_.stride, of_key_, of_value_, dstate_across_.data, of_key_);
      multiply(plain(t.k), dstate_, rhs_, {rows, of_value_, dim}, false);
      scale_rows(rhs_.data, of_value_, 0, rows, t.left);
    }
    multiply(transposed(t.scores), d_o_tile_, rhs_, {rows, of_value_, rows}, has_end, kUpperLeft);
    solve_upper(kept.triangle, rhs_, rows, of_value_);
    std::fill_n(dstrengths_, rows, W(0));
    add_dots(rhs_, kept.changes, W(1), rows, of_value_, dstrengths_);
    for (int64_t i = 0; i < rows; ++i) dstrengths_[i] *= 1 - t.strengths[i];
    make_pairs(kept);
    make_key_gradients(kept, has_state, has_end);
    make_decay_gradients(end_state, has_end);
    scale_rows(rhs_.data, of_value_, 0, rows, t.strengths);  // the gradient of values
    store(at, adds);
  }

  /// Gradients of the products k_i.k_j and q_i.k_j.
  void make_pairs(const Kept& kept) {
    ChunkTiles<W>& t = tiles_;
    const int64_t rows = t.rows();
    transpose(kept.changes.data, of_value_, rows, of_value_, changes_across_.data, kChunk);
    const ProductSize size{rows, rows, shape_.value_dim};
    multiply(plain(rhs_), changes_across_, pairs_, size, false, kLowerResult);
    multiply(plain(d_o_tile_), changes_across_, query_pairs_, size, false, kLowerResult);
    W factors[kChunk];
    for (int64_t i = 0; i < rows; ++i) factors[i] = -t.strengths[i];
    weigh_pairs(t.decays, factors, rows, false, pairs_);
    std::fill_n(factors, rows, W(1));
    weigh_pairs(t.decays, factors, rows, true, query_pairs_);
  }

  /// Gradients of queries, and of keys that meet states and keys before them (`before`) and of
  /// those that states and keys after them meet; and that of the state before the chunk.
  void make_key_gradients(const Kept& kept, bool has_state, bool has_end) {
    ChunkTiles<W>& t = tiles_;
    const int64_t rows = t.rows(), dim = shape_.key_dim, value_dim = shape_.value_dim;
    const ProductSize by_values{rows, of_key_, value_dim}, by_rows{rows, of_key_, rows},
        of_state{dim, of_value_, rows};
    if (has_end) {
      scaled_rows(kept.changes, t.left, rows, of_value_, scaled_);
      multiply(plain(scaled_), dstate_across_, dk_after_, by_values, false);
      if (has_state) scale_rows(dstate_.data, dstate_.stride * of_key_, 0, 1, &t.decayed[rows - 1]);
    } else if (has_state) {
      std::fill_n(dstate_.data, of_key_ * of_value_, W(0));
    }
    multiply(transposed(pairs_), t.k, dk_after_, by_rows, has_end, kUpperLeft);
    multiply(transposed(query_pairs_), t.q, dk_after_, by_rows, true, kUpperLeft);
    if (has_state) {
      scaled_rows(d_o_tile_, t.decayed, rows, of_value_, scaled_);
      multiply(plain(scaled_), kept.state, dq_, by_values, false);
      multiply(transposed(t.q), scaled_, dstate_, of_state, true);
      W factors[kChunk];
      for (int64_t i = 0; i < rows; ++i) factors[i] = -t.strengths[i] * t.decayed[i];
      scaled_rows(rhs_, factors, rows, of_value_, scaled_);
      multiply(plain(scaled_), kept.state, dk_before_, by_values, false);
      multiply(transposed(t.k), scaled_, dstate_, of_state, true);
    }
    multiply(plain(query_pairs_), t.k, dq_, by_rows, has_state, kLowerLeft);
    multiply(plain(pairs_), t.k, dk_before_, by_rows, has_state, kLowerLeft);
  }

  /// G_i stands with q_i and with the k_i that meets what is before it, -G_i with the other one,
  /// and the last G with the state at the end. g_i is in G_i and all later ones.
  void make_decay_gradients(const Tile<W>& end_state, bool has_end) {
    ChunkTiles<W>& t = tiles_;
    const int64_t rows = t.rows();
    std::fill_n(dsums_, rows, W(0));
    add_dots(t.q, dq_, W(1), rows, of_key_, dsums_);
    add_dots(t.k, dk_before_, W(1), rows, of_key_, dsums_);
    add_dots(t.k, dk_after_, W(-1), rows, of_key_, dsums_);
    if (has_end) {
      const Tile<W> one{dstate_across_.data, 0}, other{end_state.data, 0};
      add_dots(one, other, W(1), 1, of_key_ * of_value_, &dsums_[rows - 1]);
    }
    for (int64_t i = rows - 1; i > 0; --i) dsums_[i - 1] += dsums_[i];
  }

  void store(const ChunkPlace& at, bool adds) {
    const int64_t key_head = at.head / shape_.group(), columns = shape_.columns();
    W* row = dmixed_ + at.token * columns;
    store_tile(dq_, at.rows, shape_.key_dim, adds, row + shape_.query(key_head), columns);
    store_tile(dk_before_, at.rows, shape_.key_dim, adds, row + shape_.key(key_head), columns);
    store_tile(dk_after_, at.rows, shape_.key_dim, true, row + shape_.key(key_head), columns);
    store_tile(rhs_, at.rows, shape_.value_dim, false, row + shape_.value(at.head), columns);
    for (int64_t i = 0; i < at.rows; ++i, row += columns) {
      row[shape_.strength(at.head)] = dstrengths_[i];
      row[shape_.decay(at.head)] = dsums_[i];
    }
  }

  const DeltaShape& shape_;
  const W* d_o_;
  W* dmixed_;
  ChunkTiles<W> tiles_;
  const int64_t of_key_, of_value_;  ///< columns of tiles
  Kept kept_[kGroupChunks];
  Tile<W> d_o_tile_, rhs_, scaled_, changes_across_, pairs_, query_pairs_;
  Tile<W> dq_, dk_before_, dk_after_;
  Tile<W> dstate_;                     ///< (key_dim, value_dim), at the end of a chunk
  Tile<W> dstate_across_, end_state_;  ///< (value_dim, key_dim)
  W *dsums_, *dstrengths_;
};

template <class Visit>
void with_wide_type(const at::Tensor& wide, Visit visit) {
  if (wide.scalar_type() == at::kDouble) return visit(double{});
  visit(float{});
}

}  // namespace

int64_t kept_states(const std::vector<int64_t>& bounds) {
  int64_t states = 0;
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    states += (std::max<int64_t>(1, chunks_of(bounds[s + 1] - bounds[s])) - 1) / kGroupChunks;
  return states;
}

void scan_chunks(const DeltaRows& rows, const at::Tensor& o, const at::Tensor& states,
                 const at::Tensor& last) {
  const std::vector<ScannedSample> samples = samples_of(rows.bounds);
  const int64_t heads = rows.shape.value_heads;
  with_wide_type(rows.mixed, [&]<class W>(W) {
    for_each_item(
        std::ssize(samples) * heads, [&] { return ForwardChunks<W>(rows, o); },
        [&](ForwardChunks<W>& worker, int64_t item) {
          const int64_t sample = item / heads, head = item % heads;
          W* at_end = last.defined() ? state_at<W>(last, sample, head) : nullptr;
          worker.run(samples[sample], head, states, at_end);
        });
  });
}

void scan_chunks_backward(const DeltaRows& rows, const at::Tensor& d_o, const at::Tensor& states,
                          const at::Tensor& dmixed) {
  const std::vector<ScannedSample> samples = samples_of(rows.bounds);
  const int64_t key_heads = rows.shape.key_heads, group = rows.shape.group();
  with_wide_type(rows.mixed, [&]<class W>(W) {
    for_each_item(
        std::ssize(samples) * key_heads, [&] { return BackwardChunks<W>(rows, d_o, dmixed); },
        [&](BackwardChunks<W>& worker, int64_t item) {
          for (int64_t i = 0; i < group; ++i)
            worker.run(samples[item / key_heads], item % key_heads * group + i, states, i > 0);
        });
  });
}

}  // namespace zea::detail
