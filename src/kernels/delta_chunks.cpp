// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta_chunks.hpp"

#include "kernels/delta_tiles.hpp"

namespace zea::detail {
namespace {

using namespace delta;

template <class W>
class ForwardChunks {
 public:
  ForwardChunks(const DeltaRows& rows, const at::Tensor& o)
      : shape_(rows.shape),
        o_(o.view({o.size(0), shape_.value_heads, shape_.value_dim})),
        tiles_(rows, 0) {}

  /// `first` and `last`: states before and after the sample; null: zeros, and not asked for.
  void run(const ScannedSample& sample, int64_t head, const at::Tensor& states, const W* first,
           W* last) {
    if (first) tiles_.load_state(first);
    for (int64_t c = 0; c < sample.chunks(); ++c) {
      if (c > 0 && c % kGroupChunks == 0)
        tiles_.store_state(state_at<W>(states, sample.first_state + c / kGroupChunks - 1, head));
      const int64_t token = sample.begin + c * kChunk;
      const bool is_last = token + kChunk >= sample.end;
      run_chunk({token, std::min(kChunk, sample.end - token), head}, first || c > 0,
                last || !is_last);
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

}  // namespace

int64_t kept_states(const std::vector<int64_t>& bounds) {
  int64_t states = 0;
  for (size_t s = 0; s + 1 < bounds.size(); ++s)
    states += (std::max<int64_t>(1, chunks_of(bounds[s + 1] - bounds[s])) - 1) / kGroupChunks;
  return states;
}

void scan_chunks(const DeltaRows& rows, const at::Tensor& o, const at::Tensor& states,
                 const SampleStates& of_samples) {
  if (!rows.mixed.is_cpu()) return scan_batches(rows, o, states, of_samples);
  const std::vector<ScannedSample> samples = samples_of(rows.tokens.bounds);
  const int64_t heads = rows.shape.value_heads;
  with_wide_type(rows.mixed, [&]<class W>(W) {
    for_each_item(
        std::ssize(samples) * heads, [&] { return ForwardChunks<W>(rows, o); },
        [&](ForwardChunks<W>& worker, int64_t item) {
          const int64_t sample = item / heads, head = item % heads;
          worker.run(samples[sample], head, states,
                     state_or_null<W>(of_samples.first, sample, head),
                     state_or_null<W>(of_samples.last, sample, head));
        });
  });
}

}  // namespace zea::detail
