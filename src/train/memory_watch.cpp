// SPDX-License-Identifier: Apache-2.0
#include "zea/train/memory_watch.hpp"

#include <cstdio>

namespace zea {
namespace {

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

MemoryWatch::MemoryWatch(TensorBytes& bytes, Engine& engine, const std::vector<SampleIndex>& index)
    : bytes_(bytes), engine_(engine), index_(index) {}

std::string MemoryWatch::foretell(const StepPlan& step) const {
  MemoryEstimate most;
  for (int replica = 0; replica < static_cast<int>(step.replicas.size()); ++replica) {
    const MemoryEstimate estimate = estimate_memory(engine_.plan(), step, replica, index_);
    if (estimate.total() > most.total()) most = estimate;
  }
  return "bytes in step " + std::to_string(step.step + 1) +
         " on the rank that needs most: " + describe(most);
}

void MemoryWatch::begin_step() {
  bytes_.reset_peak();
}

void MemoryWatch::end_step(const StepPlan& step) {
  if (!engine_.microbatch_options().device.is_cpu()) return;
  const int64_t peak = bytes_.peak() + engine_.ledger().shared_bytes();
  if (peak <= peak_) return;
  peak_ = peak;
  step_ = step.step;
  const int replica = engine_.plan().replica_of(engine_.world_rank());
  foretold_ = estimate_memory(engine_.plan(), step, replica, index_).total();
}

std::string MemoryWatch::summary() const {
  if (peak_ == 0) return "";
  char text[160];
  std::snprintf(text, sizeof text,
                "peak of all tensors on rank %d, in step %ld: predicted %.2f MiB, counted %.2f MiB",
                engine_.world_rank(), static_cast<long>(step_ + 1), mebibytes(foretold_),
                mebibytes(peak_));
  return text;
}

}  // namespace zea
