// SPDX-License-Identifier: Apache-2.0
#include "zea/kernels/short_attention.hpp"

#include <algorithm>
#include <utility>

#include "elements.hpp"
#include "launch.hpp"
#include "small_product.hpp"
#include "zea/core/kernel_sizes.hpp"

namespace zea {
namespace {

using namespace detail;

constexpr int64_t kSegmentsAtOnce = 4;

/// Memory of one head of one segment: matrices of (length, head_dim), their transposes, and two of
/// (length, length), all padded to blocks. Padding is zero and stays so.
template <class W>
class HeadMemory {
 public:
  HeadMemory(int64_t length, int64_t dim)
      : length(length),
        dim(dim),
        rows(round_up(round_up(length, kBlockRows), Vector<W>::kLanes)),
        columns(round_up(dim, Vector<W>::kLanes)),
        memory_(7 * rows * columns + 2 * columns * rows + 2 * rows * rows) {
    W* next = memory_.data();
    for (W** matrix : {&q, &k, &v, &dout, &out, &dk, &dv})
      *matrix = std::exchange(next, next + rows * columns);
    for (W** matrix : {&k_transposed, &v_transposed})
      *matrix = std::exchange(next, next + columns * rows);
    for (W** matrix : {&p, &ds}) *matrix = std::exchange(next, next + rows * rows);
  }

  void clear(W* matrix) { std::fill_n(matrix, rows * columns, W(0)); }
  void clear_square(W* matrix) { std::fill_n(matrix, rows * rows, W(0)); }

  const int64_t length, dim, rows, columns;
  W *q, *k, *v, *dout, *out, *dk, *dv, *k_transposed, *v_transposed, *p, *ds;

 private:
  std::vector<W> memory_;
};

/// Rows of one head in a tensor of (tokens, heads, dim).
template <class T>
struct HeadRows {
  T* data;
  int64_t stride;       ///< elements between tokens
  const int64_t* rows;  ///< the segment's
  int64_t count;

  T* row(int64_t i) const { return data + rows[i] * stride; }
};

template <class W, class T>
void gather(const HeadRows<const T>& from, W scale, const HeadMemory<W>& memory, W* target) {
  for (int64_t i = 0; i < from.count; ++i) {
    const T* __restrict source = from.row(i);
    W* __restrict row = target + i * memory.columns;
    for (int64_t d = 0; d < memory.dim; ++d) row[d] = load(source[d]) * scale;
  }
  std::fill_n(target + from.count * memory.columns, (memory.rows - from.count) * memory.columns,
              W(0));
}

template <class W, class T>
void scatter(const W* source, W scale, const HeadMemory<W>& memory, const HeadRows<T>& to) {
  for (int64_t i = 0; i < to.count; ++i) {
    const W* __restrict row = source + i * memory.columns;
    T* __restrict target = to.row(i);
    for (int64_t d = 0; d < memory.dim; ++d) store(target[d], row[d] * scale);
  }
}

template <class W>
void transpose(const W* source, const HeadMemory<W>& memory, W* target) {
  for (int64_t i = 0; i < memory.rows; ++i)
    for (int64_t d = 0; d < memory.dim; ++d)
      target[d * memory.rows + i] = source[i * memory.columns + d];
}

/// Scores of one row to probabilities; zero beyond `visible`. Whole vectors all along: the rest of
/// a loop that is no vector would take longer than the vectors.
template <class W>
ZEA_WIDE_CLONES void softmax_row(W* __restrict row, int64_t visible, int64_t width) {
  const int64_t used = round_up(visible, Vector<W>::kLanes);
  for (int64_t j = visible; j < used; ++j) row[j] = row[0];
  W largest = row[0];
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < used; ++j) largest = row[j] > largest ? row[j] : largest;
  W sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < used; ++j) {
    const W value = j < visible ? exponential(row[j] - largest) : W(0);
    row[j] = value;
    sum += value;
  }
  const W factor = 1 / sum;
  for (int64_t j = 0; j < used; ++j) row[j] *= factor;
  for (int64_t j = used; j < width; ++j) row[j] = 0;
}

/// p = softmax(q k^T), with the scale in q already.
template <class W>
void fill_probabilities(HeadMemory<W>& m, int64_t count, bool causal) {
  m.clear_square(m.p);
  const int64_t rows = round_up(count, kBlockRows);
  add_small_product<W>({m.q, m.columns, 1}, {m.k_transposed, m.rows}, {m.p, m.rows}, rows,
                       round_up(count, Vector<W>::kLanes), m.dim,
                       causal ? Triangle::ResultBelow : Triangle::None);
  for (int64_t i = 0; i < count; ++i) softmax_row(m.p + i * m.rows, causal ? i + 1 : count, m.rows);
}

template <class W>
ZEA_WIDE_CLONES void score_gradient_row(const W* __restrict p, W* __restrict ds, int64_t width) {
  W sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t j = 0; j < width; ++j) sum += p[j] * ds[j];
  for (int64_t j = 0; j < width; ++j) ds[j] = p[j] * (ds[j] - sum);
}

/// ds = p (dp - sum(p dp)), in place of dp = dout v^T.
template <class W>
void fill_score_gradients(HeadMemory<W>& m, int64_t count, bool causal) {
  m.clear_square(m.ds);
  add_small_product<W>({m.dout, m.columns, 1}, {m.v_transposed, m.rows}, {m.ds, m.rows},
                       round_up(count, kBlockRows), round_up(count, Vector<W>::kLanes), m.dim,
                       causal ? Triangle::ResultBelow : Triangle::None);
  for (int64_t i = 0; i < count; ++i)
    score_gradient_row(m.p + i * m.rows, m.ds + i * m.rows, m.rows);
}

/// What all heads of a call share.
template <class T>
struct Call {
  const ShortSegments& segments;
  const AttentionHeads& heads;
  int64_t dim;

  int64_t all_heads() const { return heads.query + 2 * heads.key_value; }
  int64_t group() const { return heads.query / heads.key_value; }
  Wide<T> scale() const { return static_cast<Wide<T>>(1 / std::sqrt(static_cast<double>(dim))); }
  template <class U>
  HeadRows<U> head(const at::Tensor& tensor, int64_t segment, int64_t head) const {
    return {elements<T>(tensor) + head * dim, tensor.size(1) * dim,
            elements<int64_t>(segments.rows) + segment * segments.length,
            segments.lengths[segment]};
  }
  HeadRows<const T> input(const at::Tensor& tensor, int64_t segment, int64_t which) const {
    return head<const T>(tensor, segment, which);
  }
  HeadRows<T> output(const at::Tensor& tensor, int64_t segment, int64_t which) const {
    return head<T>(tensor, segment, which);
  }
};

template <class T>
void forward_segment(const Call<T>& call, const at::Tensor& qkv, const at::Tensor& y,
                     int64_t segment, HeadMemory<Wide<T>>& m) {
  using W = Wide<T>;
  const AttentionHeads& heads = call.heads;
  const int64_t count = call.segments.lengths[segment];
  for (int64_t kv = 0; kv < heads.key_value; ++kv) {
    gather(call.input(qkv, segment, heads.query + kv), W(1), m, m.k);
    gather(call.input(qkv, segment, heads.query + heads.key_value + kv), W(1), m, m.v);
    transpose(m.k, m, m.k_transposed);
    for (int64_t head = kv * call.group(); head < (kv + 1) * call.group(); ++head) {
      gather(call.input(qkv, segment, head), call.scale(), m, m.q);
      fill_probabilities(m, count, heads.causal);
      m.clear(m.out);
      add_small_product<W>({m.p, m.rows, 1}, {m.v, m.columns}, {m.out, m.columns},
                           round_up(count, kBlockRows), m.columns, count,
                           heads.causal ? Triangle::LeftBelow : Triangle::None);
      scatter(m.out, W(1), m, call.output(y, segment, head));
    }
  }
}

/// Adds one query head's part to dk and dv, and gives its dq.
template <class T>
void backward_head(const Call<T>& call, const at::Tensor& dqkv, int64_t segment, int64_t head,
                   HeadMemory<Wide<T>>& m) {
  using W = Wide<T>;
  const int64_t count = call.segments.lengths[segment], rows = round_up(count, kBlockRows);
  const bool causal = call.heads.causal;
  fill_probabilities(m, count, causal);
  fill_score_gradients(m, count, causal);
  const Triangle above = causal ? Triangle::LeftAbove : Triangle::None;
  add_small_product<W>({m.p, 1, m.rows}, {m.dout, m.columns}, {m.dv, m.columns}, rows, m.columns,
                       count, above);
  add_small_product<W>({m.ds, 1, m.rows}, {m.q, m.columns}, {m.dk, m.columns}, rows, m.columns,
                       count, above);
  m.clear(m.out);
  add_small_product<W>({m.ds, m.rows, 1}, {m.k, m.columns}, {m.out, m.columns}, rows, m.columns,
                       count, causal ? Triangle::LeftBelow : Triangle::None);
  scatter(m.out, call.scale(), m, call.output(dqkv, segment, head));
}

template <class T>
void backward_segment(const Call<T>& call, const at::Tensor& dy, const at::Tensor& qkv,
                      const at::Tensor& dqkv, int64_t segment, HeadMemory<Wide<T>>& m) {
  using W = Wide<T>;
  const AttentionHeads& heads = call.heads;
  for (int64_t kv = 0; kv < heads.key_value; ++kv) {
    gather(call.input(qkv, segment, heads.query + kv), W(1), m, m.k);
    gather(call.input(qkv, segment, heads.query + heads.key_value + kv), W(1), m, m.v);
    transpose(m.k, m, m.k_transposed);
    transpose(m.v, m, m.v_transposed);
    m.clear(m.dk);
    m.clear(m.dv);
    for (int64_t head = kv * call.group(); head < (kv + 1) * call.group(); ++head) {
      gather(call.input(qkv, segment, head), call.scale(), m, m.q);
      gather(call.input(dy, segment, head), W(1), m, m.dout);
      backward_head(call, dqkv, segment, head, m);
    }
    scatter(m.dk, W(1), m, call.output(dqkv, segment, heads.query + kv));
    scatter(m.dv, W(1), m, call.output(dqkv, segment, heads.query + heads.key_value + kv));
  }
}

/// Calls `run(segment, memory)` for all segments.
template <class T, class Run>
void for_each_segment(const Call<T>& call, Run run) {
  for_each_chunk(
      static_cast<int64_t>(call.segments.lengths.size()),
      [&](int64_t, int64_t begin, int64_t end) {
        HeadMemory<Wide<T>> memory(call.segments.length, call.dim);
        for (int64_t segment = begin; segment < end; ++segment) run(segment, memory);
      },
      kSegmentsAtOnce);
}

}  // namespace

bool prefers_short_attention(const at::Tensor& qkv, int64_t length) {
  return qkv.is_cpu() && qkv.scalar_type() != at::kHalf && length <= kLongestShortSegment;
}

void short_attention_forward(const at::Tensor& qkv, const ShortSegments& segments,
                             const AttentionHeads& heads, const at::Tensor& y) {
  ZEA_ASSERT(qkv.is_contiguous() && y.is_contiguous());
  with_element_type(qkv, [&]<class T>(T) {
    const Call<T> call{segments, heads, qkv.size(2)};
    for_each_segment(call, [&](int64_t segment, HeadMemory<Wide<T>>& memory) {
      forward_segment(call, qkv, y, segment, memory);
    });
  });
}

void short_attention_backward(const at::Tensor& dy, const at::Tensor& qkv,
                              const ShortSegments& segments, const AttentionHeads& heads,
                              const at::Tensor& dqkv) {
  ZEA_ASSERT(dy.is_contiguous() && qkv.is_contiguous() && dqkv.is_contiguous());
  with_element_type(qkv, [&]<class T>(T) {
    const Call<T> call{segments, heads, qkv.size(2)};
    for_each_segment(call, [&](int64_t segment, HeadMemory<Wide<T>>& memory) {
      backward_segment(call, dy, qkv, dqkv, segment, memory);
    });
  });
}

}  // namespace zea
