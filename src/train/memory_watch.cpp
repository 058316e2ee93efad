// SPDX-License-Identifier: Apache-2.0
#include "zea/train/memory_watch.hpp"

#include <cstdio>

namespace zea {
namespace {

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

MemoryWatch::MemoryWatch(TensorBytes& bytes, Engine& engine, const std::vector<SampleIndex>& index,
                         NarrowProducts products)
    : bytes_(bytes), engine_(engine), index_(index), products_(products) {}

std::string MemoryWatch::foretell(const StepPlan& step) const {
  MemoryEstimate most;
  const Plan& plan = engine_.plan();
  for (int replica = 0; replica < plan.mesh.replicas(); ++replica)
    for (const PipelinePlace& place : plan.pipeline.places) {
      const int rank = replica * plan.mesh.ranks_per_replica() + place.first_rank;
      const MemoryEstimate estimate = estimate_memory(plan, step, rank, index_, products_);
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
  foretold_ =
      estimate_memory(engine_.plan(), step, engine_.world_rank(), index_, products_).total();
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
