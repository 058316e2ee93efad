// SPDX-License-Identifier: Apache-2.0
// What training takes of memory on this rank: predicted by the plan, and counted while it runs, of
// host tensors or by the allocator of the device.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "estimate/memory_estimate.hpp"
#include "parallel/device_memory.hpp"
#include "parallel/engine.hpp"

namespace zea {

class MemoryWatch {
 public:
  /// All must outlive it.
  MemoryWatch(TensorBytes& bytes, Engine& engine, const std::vector<SampleIndex>& index);

  /// Of the first step: what it is going to take on the rank that needs most, on the root rank.
  /// Collective then.
  std::optional<std::string> predict(const RankStep& step, Collectives& control);
  /// Around a step, from before its microbatches are made.
  void begin_step();
  void end_step(const RankStep& step);
  /// The most that all tensors took in any step, with what libraries keep on a device; 0: not
  /// counted.
  int64_t peak_bytes() const { return peak_; }
  /// Of the device; peaks since the last call. None on the host.
  std::optional<DeviceMemory> take_device_memory();
  /// Predicted and counted for the step that took most; empty: not counted.
  std::string summary() const;

 private:
  at::Device device() const { return engine_.microbatch_options().device; }
  int64_t counted_peak() const;
  void note_device_peaks();

  TensorBytes& bytes_;
  Engine& engine_;
  const std::vector<SampleIndex>& index_;
  bool has_predicted_ = false;
  int64_t peak_ = 0, predicted_ = 0, step_ = 0;
  int64_t peak_allocated_ = 0, peak_reserved_ = 0;  ///< of the device, since they were taken
  /// Requested of the device before the first step, and what was there beside that before the
  /// second: libraries keep their workspaces from the first product on.
  std::optional<int64_t> before_steps_, kept_;
};

}  // namespace zea
