// SPDX-License-Identifier: Apache-2.0
// Scans chunks of the gated delta rule on a device. Functors compute the part that does not depend
// on states for all chunks at once (delta_chunk_functors.hpp); then one GEMM per step passes states
// forward, and one per step passes their gradients back. With N = U + W S, where W and U solve
// (I + A) [W U] = [-b exp(G) k, b v], and K the rows exp(G_n - G_i) k_i, the state after a chunk is
//   S' = C + M S,   M = exp(G_n) I + K^T W,   C = K^T U;
// its gradient passes back by the transposed factor:
//   dS = M^T dS' + (exp(G) q)^T dO + W^T Y,   Y = scores^T dO,   dR = (I + A)^-T (Y + K dS').
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

#include "kernels/delta_chunks.hpp"
#include "kernels/delta_gradient_functors.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace detail {
namespace {

using at::Tensor;

using namespace delta;

int64_t chunks_in(const std::vector<int64_t>& bounds, int64_t sample) {
  return chunks_of(bounds[sample + 1] - bounds[sample]);
}

/// Returns the samples that have chunks, those with most of them first.
std::vector<int64_t> by_chunks(const std::vector<int64_t>& bounds) {
  std::vector<int64_t> order(bounds.size() - 1);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int64_t a, int64_t b) { return chunks_in(bounds, a) > chunks_in(bounds, b); });
  while (!order.empty() && chunks_in(bounds, order.back()) == 0) order.pop_back();
  return order;
}

/// Returns, for each step of `samples` and one behind the last, how many of them, those with most
/// chunks first, have a chunk there.
std::vector<int64_t> counts_of(const std::vector<int64_t>& bounds,
                               const std::vector<int64_t>& samples) {
  std::vector<int64_t> counts;
  int64_t count = std::ssize(samples);
  for (int64_t step = 0; count > 0; counts.push_back(count), ++step)
    while (count > 0 && chunks_in(bounds, samples[count - 1]) <= step) --count;
  return counts;
}

constexpr int64_t kMostChunks = kDeltaBatchTokens / kChunk;

/// Adds the spans of `samples`, each of as many groups of steps as take at most kMostChunks, one at
/// least.
void add_spans(const std::vector<int64_t>& bounds, const std::vector<int64_t>& samples,
               std::vector<ChunkSpan>& spans) {
  const std::vector<int64_t> counts = counts_of(bounds, samples);
  const int64_t steps = std::ssize(counts) - 1;
  int64_t chunk = spans.empty() ? 0 : spans.back().first_chunk + spans.back().chunks();
  int64_t state = spans.empty() ? 0 : spans.back().end_state();
  for (int64_t step = 0, end = 0; step < steps; step = end) {
    int64_t chunks = 0;
    while (end < steps) {
      const int64_t next = std::min(end + kGroupChunks, steps);
      const int64_t more = std::accumulate(counts.begin() + end, counts.begin() + next, int64_t{0});
      if (chunks > 0 && chunks + more > kMostChunks) break;
      chunks += more;
      end = next;
    }
    spans.push_back({.samples = samples,
                     .first_step = step,
                     .counts = {counts.begin() + step, counts.begin() + end + 1},
                     .first_chunk = chunk,
                     .first_state = state});
    chunk += chunks;
    state = spans.back().end_state();
  }
}

/// A span's chunks; the items of its tensors are the value heads of each chunk.
class SpanScan {
 public:
  /// `d_o`: the gradients of the outputs, if store_gradients() will be called.
  SpanScan(const DeltaRows& rows, const ChunkSpan& span, const Tensor& d_o = {})
      : rows_(rows),
        shape_(rows.shape),
        span_(span),
        heads_(shape_.value_heads),
        items_(span.chunks() * heads_),
        chunks_(rows.tokens.chunks.narrow(0, span.first_chunk, span.chunks())),
        d_o_(d_o) {
    const int64_t keys = shape_.key_dim, values = shape_.value_dim, both = keys + values;
    numbers_ = made({5, kDeltaChunk});
    pairs_ = made({2 * kDeltaChunk, kDeltaChunk});
    solved_ = made({kDeltaChunk, both});
    passing_ = made({keys, both});
    terms_ = made({keys + kDeltaChunk, values});
    const Tensor across = made({keys, kDeltaChunk});
    if (d_o.defined()) {
      d_changes_ = made({kDeltaChunk, values});
      adds_ = made({keys, values});
      d_ends_ = made({keys, values});
    }
    with_wide_type(rows_.mixed, [&]<class W>(W) {
      MakeChunk<W> make{chunk_rows<W>(), operands<W>()};
      make.to.across = elements<W>(across);
      if (d_o.defined())
        run(MakeChunkBackward<W>{make, gradients<W>()}, items_);
      else
        run(make, items_);
    });
  }

  /// Computes the states before all chunks, `first` (samples that the first step has, ...) before
  /// the first step's (undefined: zeros). Writes those after the last step of samples that go on
  /// to `next`, and to `last` (see SampleStates) those after samples that do not. `kept` takes
  /// states at the groups' bounds within the span.
  void pass_states(const Tensor& first, const Tensor& next, const Tensor& last,
                   const Tensor& kept) {
    const Tensor adds = passing_.narrow(2, shape_.key_dim, shape_.value_dim), own = states();
    if (first.defined())
      of_step(own, 0).copy_(first);
    else
      stateless_ = span_.counts.front() * heads_;
    int64_t kept_states = 0, chunk = 0;
    for (int64_t step = 0; step < span_.steps(); ++step) {
      const int64_t here = span_.counts[step], on = span_.counts[step + 1];
      const auto after = [&](int64_t from, int64_t count, Tensor out) {
        const auto part = [&](const Tensor& of) {
          return of.narrow(0, (chunk + from) * heads_, count * heads_);
        };
        const bool has_states = chunk * heads_ >= stateless_;
        if (!has_states && out.defined())
          out.copy_(part(adds));
        else if (!has_states)
          out = part(adds).contiguous();
        else if (out.defined())
          at::baddbmm_out(out, part(adds), part(moves()), part(own));
        else
          out = at::baddbmm(part(adds), part(moves()), part(own));
        return out;
      };
      const bool is_end = step + 1 == span_.steps();
      if (on > 0 && (!is_end || next.defined())) {
        Tensor to = is_end ? next : own.narrow(0, (chunk + here) * heads_, on * heads_);
        after(0, on, to);
        if (!is_end && (span_.first_step + step + 1) % kGroupChunks == 0 && kept.defined()) {
          kept.narrow(0, kept_states * heads_, on * heads_).copy_(to);
          kept_states += on;
        }
      }
      if (last.defined() && here > on) {
        last.index_copy_(
            0, samples_between(on, here, last.device()),
            after(on, here - on, {}).view({here - on, heads_, shape_.key_dim, shape_.value_dim}));
      }
      chunk += here;
    }
  }

  void store_outputs(const Tensor& o) const {
    with_element_type(o, [&]<class T>(T) {
      using W = Wide<T>;
      run(StoreOutputs<T>{chunk_rows<W>(), operands<W>(), stateless_, elements<T>(o)}, items_);
    });
  }

  /// Returns the parts of `all` (samples, ...) of the samples that the first step has.
  Tensor of_first_step(const Tensor& all) const {
    return all.index_select(0, samples_between(0, span_.counts.front(), all.device()))
        .flatten(0, 1);
  }

  /// `next`: the gradients of the states after the last step, of samples that go on; `last` (see
  /// SampleStates): those of the states after samples that do not; to `first` go those of the
  /// states before the first step, where it is defined.
  void store_gradients(const Tensor& next, const Tensor& last, const Tensor& first,
                       const Tensor& dmixed) const {
    pass_back(next, last, first);
    const int64_t key_items = span_.chunks() * shape_.key_heads;
    with_wide_type(rows_.mixed, [&]<class W>(W) {
      const Tensor tiles =
          at::empty({key_items, GradientTiles<W>::elements(shape_)}, rows_.mixed.options());
      run(StoreChunkGradients<W>{chunk_rows<W>(),
                                 operands<W>(),
                                 gradients<W>(),
                                 {elements<W>(tiles), shape_},
                                 stateless_,
                                 elements<W>(dmixed)},
          key_items);
    });
  }

 private:
  Tensor made(std::vector<int64_t> shape) const {
    shape.insert(shape.begin(), items_);
    return at::empty(shape, rows_.mixed.options());
  }
  template <class Functor>
  void run(const Functor& functor, int64_t items) const {
    run_items(rows_.mixed, functor, items, shape_.key_dim + shape_.value_dim);
  }
  template <class W>
  ChunkRows<W> chunk_rows() const {
    return {elements<int64_t>(chunks_), elements<W>(rows_.mixed), shape_};
  }
  template <class W>
  ChunkOperands<W> operands() const {
    return {elements<W>(numbers_),
            elements<W>(pairs_),
            elements<W>(solved_),
            elements<W>(passing_),
            elements<W>(terms_),
            nullptr,
            shape_};
  }
  template <class W>
  ChunkGradients<W> gradients() const {
    return {elements<W>(d_o_), elements<W>(d_changes_), elements<W>(adds_), elements<W>(d_ends_)};
  }
  /// The part of a tensor that belongs to the chunks of a step.
  Tensor of_step(const Tensor& all, int64_t step) const {
    const int64_t before =
        std::accumulate(span_.counts.begin(), span_.counts.begin() + step, int64_t{0});
    return all.narrow(0, before * heads_, span_.counts[step] * heads_);
  }
  /// The span's samples [begin, end), those with most chunks first.
  Tensor samples_between(int64_t begin, int64_t end, at::Device device) const {
    const std::vector<int64_t> samples(span_.samples.begin() + begin, span_.samples.begin() + end);
    return at::tensor(samples, at::kLong).to(device);
  }
  Tensor moves() const { return passing_.narrow(2, 0, shape_.key_dim); }
  Tensor states() const { return terms_.narrow(1, 0, shape_.key_dim); }

  /// Fills d_ends_, the gradients of the states after all chunks, which are zeros before.
  void pass_back(const Tensor& next, const Tensor& last, const Tensor& first) const {
    const int64_t steps = span_.steps();
    if (next.defined()) of_step(d_ends_, steps - 1).narrow(0, 0, next.size(0)).copy_(next);
    for (int64_t step = steps - 1; step >= 0; --step) {
      const int64_t here = span_.counts[step], on = span_.counts[step + 1];
      if (last.defined() && here > on)
        of_step(d_ends_, step)
            .narrow(0, on * heads_, (here - on) * heads_)
            .copy_(last.index_select(0, samples_between(on, here, last.device())).flatten(0, 1));
      Tensor to = step == 0 ? first : of_step(d_ends_, step - 1).narrow(0, 0, here * heads_);
      if (to.defined())
        at::baddbmm_out(to, of_step(adds_, step), of_step(moves(), step).transpose(1, 2),
                        of_step(d_ends_, step));
    }
  }

  const DeltaRows& rows_;
  const DeltaShape& shape_;
  const ChunkSpan& span_;
  const int64_t heads_, items_;
  const Tensor chunks_, d_o_;
  Tensor numbers_, pairs_, solved_, passing_, terms_;  ///< see ChunkOperands
  Tensor d_changes_, adds_, d_ends_;                   ///< see ChunkGradients
  int64_t stateless_ = 0;                              ///< number of first items with zero states
};

/// (items, key_dim, value_dim) of kept states.
Tensor items_of(const Tensor& states, int64_t first, int64_t count) {
  return states.narrow(0, first, count).flatten(0, 1);
}

}  // namespace

int64_t ChunkSpan::chunks() const {
  return std::accumulate(counts.begin(), counts.end() - 1, int64_t{0});
}

int64_t ChunkSpan::end_state() const {
  int64_t end = first_state;
  for (int64_t step = 0; step < steps(); step += kGroupChunks)
    if (first_step + step > 0) end += counts[step];
  return end;
}

std::vector<ChunkSpan> chunk_spans(const std::vector<int64_t>& bounds) {
  const std::vector<int64_t> order = by_chunks(bounds);
  std::vector<ChunkSpan> spans;
  for (auto begin = order.begin(), end = begin; begin != order.end(); begin = end) {
    int64_t chunks = 0;  // of the first group of steps
    for (; end != order.end(); ++end) {
      const int64_t more = std::min(chunks_in(bounds, *end), kGroupChunks);
      if (end != begin && chunks + more > kMostChunks) break;
      chunks += more;
    }
    add_spans(bounds, {begin, end}, spans);
  }
  return spans;
}

void scan_batches(const DeltaRows& rows, const Tensor& o, const Tensor& states,
                  const SampleStates& of_samples) {
  const std::vector<ChunkSpan> spans = chunk_spans(rows.tokens.bounds);
  for (size_t i = 0; i < spans.size(); ++i) {
    const ChunkSpan& span = spans[i];
    SpanScan scan(rows, span);
    Tensor first, next, kept;
    if (span.first_step > 0) {
      first = items_of(states, span.first_state, span.counts.front());
    } else if (of_samples.first.defined()) {
      first = scan.of_first_step(of_samples.first);
    }
    // States within the span follow the one before it.
    const int64_t within = span.first_state + (span.first_step > 0 ? span.counts.front() : 0);
    const int64_t behind = i + 1 < spans.size() ? spans[i + 1].first_state
                           : states.defined()   ? states.size(0)
                                                : within;
    if (span.counts.back() > 0) next = items_of(states, behind, span.counts.back());
    if (states.defined()) kept = items_of(states, within, behind - within);
    scan.pass_states(first, next, of_samples.last, kept);
    scan.store_outputs(o);
  }
}

void scan_batches_backward(const DeltaRows& rows, const Tensor& d_o, const Tensor& states,
                           const Tensor& dmixed, const SampleStates& of_samples) {
  const std::vector<ChunkSpan> spans = chunk_spans(rows.tokens.bounds);
  Tensor d_next;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    SpanScan scan(rows, *span, d_o);
    Tensor first, d_first;
    if (span->first_step > 0) {
      first = items_of(states, span->first_state, span->counts.front());
      d_first = at::empty_like(first);
    } else if (of_samples.first.defined()) {
      first = scan.of_first_step(of_samples.first);
    }
    const Tensor next = span->counts.back() > 0 ? d_next : Tensor();
    scan.pass_states(first, {}, {}, {});
    scan.store_gradients(next, of_samples.last, d_first, dmixed);
    d_next = d_first;
  }
}

}  // namespace detail

at::Tensor chunk_table(const std::vector<int64_t>& bounds) {
  std::vector<int64_t> rows;
  for (const detail::ChunkSpan& span : detail::chunk_spans(bounds))
    for (int64_t step = 0; step < span.steps(); ++step)
      for (int64_t s = 0; s < span.counts[step]; ++s) {
        const int64_t sample = span.samples[s];
        const int64_t token = bounds[sample] + (span.first_step + step) * kDeltaChunk;
        rows.insert(rows.end(), {token, std::min(kDeltaChunk, bounds[sample + 1] - token)});
      }
  return at::tensor(rows, at::kLong).view({std::ssize(rows) / 2, 2});
}

}  // namespace zea
