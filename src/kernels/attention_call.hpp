// SPDX-License-Identifier: Apache-2.0
// What forward and backward of tiled attention share: sizes of a call, and how threads take work.
#pragma once

#include <ATen/Parallel.h>

#include <atomic>

#include "kernels/attention_operands.hpp"
#include "kernels/launch.hpp"
#include "kernels/tiled_attention.hpp"

namespace zea::detail {

/// A call's heads, and their elements as tiles have them.
struct TileHeads {
  explicit TileHeads(const AttentionInputs& in)
      : heads(in.q.size(1)), kv_heads(in.k.size(1)), dim(in.q.size(2)), scores(in.scores) {
    ZEA_ASSERT(kv_heads > 0 && heads % kv_heads == 0 && in.v.size(1) == kv_heads);
  }

  int64_t group() const { return heads / kv_heads; }
  double scale() const { return scores.scale_of(dim); }

  int64_t heads, kv_heads, dim;
  ScoreSpec scores;
};

/// Calls `run(worker, item)` for all items in descending order, each on whichever thread is free;
/// `make_worker()` makes a thread's memory.
template <class MakeWorker, class Run>
void for_each_item(int64_t items, MakeWorker make_worker, Run run) {
  std::atomic<int64_t> left{items};
  for_each_chunk(
      std::min<int64_t>(items, at::get_num_threads()),
      [&](int64_t, int64_t, int64_t) {
        int64_t item = --left;
        if (item < 0) return;
        auto worker = make_worker();
        for (; item >= 0; item = --left) run(worker, item);
      },
      1);
}

}  // namespace zea::detail
