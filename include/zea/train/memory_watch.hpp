// SPDX-License-Identifier: Apache-2.0
// What training takes of memory on this rank: predicted by the plan, and counted while it runs. The
// count is of host tensors, so on a device there is none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "zea/core/kernel_sizes.hpp"
#include "zea/parallel/engine.hpp"
#include "zea/parallel/tensor_bytes.hpp"
#include "zea/plan/estimate/memory_estimate.hpp"

namespace zea {

class MemoryWatch {
 public:
  /// All must outlive it.
  MemoryWatch(TensorBytes& bytes, Engine& engine, const std::vector<SampleIndex>& index,
              NarrowProducts products);

  /// Of the first step: what it is going to take on the rank that needs most, on the root rank.
  /// Collective then.
  std::optional<std::string> predict(const RankStep& step, Collectives& control);
  /// Around a step, from before its microbatches are made.
  void begin_step();
  void end_step(const RankStep& step);
  /// The most that all tensors took in any step; 0: not counted.
  int64_t peak_bytes() const { return peak_; }
  /// Predicted and counted for the step that took most; empty: not counted.
  std::string summary() const;

 private:
  TensorBytes& bytes_;
  Engine& engine_;
  const std::vector<SampleIndex>& index_;
  const NarrowProducts products_;
  bool has_predicted_ = false;
  int64_t peak_ = 0, predicted_ = 0, step_ = 0;
};

}  // namespace zea
