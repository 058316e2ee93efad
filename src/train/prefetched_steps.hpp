// SPDX-License-Identifier: Apache-2.0
// Prefetched batches: loaded steps with their microbatches. For a device a thread makes them a
// step ahead; for the host, whose tensors are counted step by step (MemoryWatch), they are made
// in their step.
#pragma once

#include <optional>
#include <vector>

#include "batch/make_microbatch.hpp"
#include "core/threads.hpp"
#include "data/loader.hpp"
#include "parallel/engine.hpp"

namespace zea {

struct PrefetchedStep {
  LoadedStep loaded;
  std::vector<PackedMicrobatch> microbatches = {};  ///< if they are made ahead
};

class PrefetchedSteps {
 public:
  /// Reads the steps [first_step, end_step) of the loader, which nobody else reads. Loader
  /// and engine outlive this.
  PrefetchedSteps(Loader& loader, const Engine& engine, int64_t first_step, int64_t end_step);

  /// Returns the next step, as Loader::next. Throws DataError where make_microbatch finds a
  /// fault in a sample.
  PrefetchedStep next();
  /// Moves microbatch `number` of `step` to the device, once. On the host it may refer to the
  /// step.
  Microbatch take(PrefetchedStep& step, size_t number) const;

 private:
  PackedMicrobatch make(const LoadedStep& loaded, size_t number) const;

  Loader& loader_;
  const Engine& engine_;
  const at::Device device_;
  std::optional<c10::Stream> copies_;                ///< to the device
  std::optional<Prefetcher<PrefetchedStep>> ahead_;  ///< last: its thread uses all of the above
};

}  // namespace zea
