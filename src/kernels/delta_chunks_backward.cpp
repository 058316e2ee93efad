// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta_chunks.hpp"
#include "kernels/delta_tiles.hpp"

namespace zea::detail {
namespace {

using namespace delta;

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
    own_pairs_ = tiles_.memory().take(kChunk);
  }

  /// `first`: the state before the sample; `d_last`: the gradient of the one after it; null: zeros.
  /// `adds`: to the gradients of the key head.
  void run(const ScannedSample& sample, int64_t head, const at::Tensor& states, const W* first,
           const W* d_last, bool adds) {
    const int64_t chunks = sample.chunks(), groups = parts_of(chunks, kGroupChunks);
    for (int64_t g = groups - 1; g >= 0; --g) {
      const int64_t begin = g * kGroupChunks, count = std::min(kGroupChunks, chunks - begin);
      const bool has_end = d_last || g + 1 < groups;
      if (const W* state = g > 0 ? state_at<W>(states, sample.first_state + g - 1, head) : first)
        tiles_.load_state(state);
      const auto place = [&](int64_t c) {
        const int64_t token = sample.begin + (begin + c) * kChunk;
        return ChunkPlace{token, std::min(kChunk, sample.end - token), head};
      };
      for (int64_t c = 0; c < count; ++c)
        run_forward(place(c), kept_[c], first || begin + c > 0, has_end || c + 1 < count);
      if (has_end) keep_state(end_state_);
      if (d_last && g + 1 == groups)
        load_tile(d_last, shape_.value_dim, shape_.key_dim, shape_.value_dim, of_key_, dstate_);
      for (int64_t c = count - 1; c >= 0; --c)
        run_backward(place(c), kept_[c], c + 1 < count ? kept_[c + 1].state : end_state_,
                     first || begin + c > 0, has_end || c + 1 < count, adds);
    }
  }

 private:
  /// The part of a chunk's forward that backward reads.
  struct Kept {
    Tile<W> changes, triangle;
    Tile<W> state;  ///< before it, (value_dim, key_dim)
  };

  static int64_t more_elements(const DeltaShape& shape) {
    const int64_t key = round_to(shape.key_dim, kSide), value = round_to(shape.value_dim, kSide);
    return kGroupChunks * (kChunk * (value + kChunk) + key * value) +
           kChunk * (4 * value + 3 * key + 2 * kChunk + 3) + 3 * key * value;
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
    for (int64_t i = 0; i < rows; ++i) dstrengths_[i] *= 1 - t.betas[i];
    make_pairs(kept);
    make_key_gradients(kept, has_state, has_end);
    make_decay_gradients(end_state, has_end);
    add_own_pairs();
    scale_rows(rhs_.data, of_value_, 0, rows, t.betas);  // the gradient of values
    store(at, adds);
  }

  /// Computes the gradients of the products k_i.k_j and q_i.k_j, separately for j = i (own_pairs_).
  void make_pairs(const Kept& kept) {
    ChunkTiles<W>& t = tiles_;
    const int64_t rows = t.rows();
    transpose(kept.changes.data, of_value_, rows, of_value_, changes_across_.data, kChunk);
    const ProductSize size{rows, rows, shape_.value_dim};
    multiply(plain(rhs_), changes_across_, pairs_, size, false, kLowerResult);
    multiply(plain(d_o_tile_), changes_across_, query_pairs_, size, false, kLowerResult);
    W factors[kChunk];
    for (int64_t i = 0; i < rows; ++i) factors[i] = -t.betas[i];
    weigh_pairs(t.decays, factors, rows, false, pairs_);
    std::fill_n(factors, rows, W(1));
    for (int64_t i = 0; i < rows; ++i) own_pairs_[i] = query_pairs_.row(i)[i];
    weigh_pairs(t.decays, factors, rows, false, query_pairs_);
  }

  /// Computes gradients of queries and of keys: from products with the state and keys before them
  /// (`before`), and with tokens and the state after them (`after`); and of the state before.
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
      for (int64_t i = 0; i < rows; ++i) factors[i] = -t.betas[i] * t.decayed[i];
      scaled_rows(rhs_, factors, rows, of_value_, scaled_);
      multiply(plain(scaled_), kept.state, dk_before_, by_values, false);
      multiply(transposed(t.k), scaled_, dstate_, of_state, true);
    }
    multiply(plain(query_pairs_), t.k, dq_, by_rows, has_state, kLowerLeft);
    multiply(plain(pairs_), t.k, dk_before_, by_rows, has_state, kLowerLeft);
  }

  /// Computes the gradients of decays g_i, each the sum of the gradients of G_i and later sums.
  /// exp(G_i) scales q_i, and k_i in products with earlier tokens; exp(-G_i) scales k_i in products
  /// with later ones; exp(G_n) scales the state. In products of a token with itself they cancel.
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

  /// Adds the gradients of q_i and k_i from the products q_i.k_i.
  void add_own_pairs() {
    scaled_rows<true>(tiles_.k, own_pairs_, tiles_.rows(), of_key_, dq_);
    scaled_rows<true>(tiles_.q, own_pairs_, tiles_.rows(), of_key_, dk_after_);
  }

  void store(const ChunkPlace& at, bool adds) {
    const int64_t key_head = at.head / shape_.group(), columns = shape_.columns();
    W* row = dmixed_ + at.token * columns;
    store_tile(dq_, at.rows, shape_.key_dim, adds, row + shape_.query(key_head), columns);
    store_tile(dk_before_, at.rows, shape_.key_dim, adds, row + shape_.key(key_head), columns);
    store_tile(dk_after_, at.rows, shape_.key_dim, true, row + shape_.key(key_head), columns);
    store_tile(rhs_, at.rows, shape_.value_dim, false, row + shape_.value(at.head), columns);
    for (int64_t i = 0; i < at.rows; ++i, row += columns) {
      row[shape_.beta(at.head)] = dstrengths_[i];
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
  W* own_pairs_;  ///< gradients of q_i.k_i
};

}  // namespace

void scan_chunks_backward(const DeltaRows& rows, const at::Tensor& d_o, const at::Tensor& states,
                          const at::Tensor& dmixed, const SampleStates& of_samples) {
  if (!rows.mixed.is_cpu()) return scan_batches_backward(rows, d_o, states, dmixed, of_samples);
  const std::vector<ScannedSample> samples = samples_of(rows.tokens.bounds);
  const int64_t key_heads = rows.shape.key_heads, group = rows.shape.group();
  with_wide_type(rows.mixed, [&]<class W>(W) {
    for_each_item(
        std::ssize(samples) * key_heads, [&] { return BackwardChunks<W>(rows, d_o, dmixed); },
        [&](BackwardChunks<W>& worker, int64_t item) {
          const int64_t sample = item / key_heads;
          for (int64_t i = 0; i < group; ++i) {
            const int64_t head = item % key_heads * group + i;
            worker.run(samples[sample], head, states,
                       state_or_null<W>(of_samples.first, sample, head),
                       state_or_null<W>(of_samples.last, sample, head), i > 0);
          }
        });
  });
}

}  // namespace zea::detail
