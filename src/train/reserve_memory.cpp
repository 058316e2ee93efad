// SPDX-License-Identifier: Apache-2.0
#include "train/reserve_memory.hpp"

#include "core/text.hpp"
#include "estimate/memory_estimate.hpp"
#include "parallel/device_memory.hpp"

namespace zea {
namespace {

MemoryEstimate of_full_rows(const Plan& plan, int world_rank) {
  const auto microbatches = static_cast<size_t>(predicted_microbatches(plan));
  return estimate_run(plan, world_rank, std::vector(microbatches, full_microbatch(plan)));
}

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

int64_t bytes_of_steps(const Plan& plan, int world_rank) {
  const MemoryEstimate estimate = of_full_rows(plan, world_rank);
  return estimate.activations + estimate.keys + estimate.total() / 10;
}

std::string reserve_for_steps(const Engine& engine) {
  const Plan& plan = engine.plan();
  const at::Device device = engine.microbatch_options().device;
  if (device.is_cpu() || plan.options.run.cuda_graphs > 0) return {};
  const int rank = engine.world_rank();
  const int64_t bytes = bytes_of_steps(plan, rank), libraries = of_full_rows(plan, rank).libraries;
  if (reserve_device_memory(device, bytes, libraries)) return {};
  return formatted(
      "a GPU does not have the %.0f MiB that steps of full rows take, and %.0f MiB for NCCL. If "
      "memory runs out in a step, the host waits for the GPU, which in a pipeline can wait for "
      "ever; lower data.row_tokens, recompute more, or use more ranks",
      mebibytes(bytes), mebibytes(libraries));
}

}  // namespace zea
