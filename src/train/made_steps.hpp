// SPDX-License-Identifier: Apache-2.0
// Loaded steps with their microbatches. On a device these are made a step ahead, by a thread of
// their own; on the host, whose tensors are counted step by step (MemoryWatch), in their step.
#pragma once

#include <optional>
#include <vector>

#include "batch/make_microbatch.hpp"
#include "core/threads.hpp"
#include "data/loader.hpp"
#include "parallel/engine.hpp"

namespace zea {

struct MadeStep {
  LoadedStep loaded;
  std::vector<PackedMicrobatch> microbatches = {};  ///< where they are made ahead
};

class MadeSteps {
 public:
  /// Of the steps [first_step, end_step) of the loader, which is read by nobody else and outlives
  /// this, as the engine does.
  MadeSteps(Loader& loader, const Engine& engine, int64_t first_step, int64_t end_step);

  /// As Loader::next, and what is wrong with samples by make_microbatch.
  MadeStep next();
  /// Microbatch `number` of `step`, for the device: once. On the host it may refer to the step.
  Microbatch take(MadeStep& step, size_t number) const;

 private:
  PackedMicrobatch make(const LoadedStep& loaded, size_t number) const;

  Loader& loader_;
  const Engine& engine_;
  const at::Device device_;
  std::optional<c10::Stream> copies_;     ///< to the device
  std::optional<Ahead<MadeStep>> ahead_;  ///< last: its thread uses all of the above
};

}  // namespace zea
