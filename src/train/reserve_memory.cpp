// SPDX-License-Identifier: Apache-2.0
#include "train/reserve_memory.hpp"

#include "core/text.hpp"
#include "estimate/memory_estimate.hpp"
#include "parallel/device_memory.hpp"

namespace zea {
namespace {

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

StepBytes bytes_of_steps(const Plan& plan, int world_rank, int64_t microbatches) {
  UnitMemoryCache known(plan, full_microbatch(plan));
  const std::vector<MicrobatchSizes> full(static_cast<size_t>(microbatches), known.microbatch());
  const MemoryEstimate estimate = estimate_run(plan, world_rank, full, &known);
  const int64_t computing = estimate.activations - estimate.inputs + estimate.keys;
  return {.computing = computing + (estimate.total() - estimate.inputs) / 10,
          .inputs = estimate.inputs,
          .libraries = estimate.libraries};
}

std::string reserve_for_steps(const Engine& engine, int64_t microbatches) {
  const RunOptions& run = engine.plan().options.run;
  const at::Device device = engine.microbatch_options().device;
  if (device.is_cpu() || run.cuda_graphs > 0 || run.ranks_per_gpu > 1) return {};
  const StepBytes bytes = bytes_of_steps(engine.plan(), engine.world_rank(), microbatches);
  const bool has_room =
      reserve_device_memory(device, bytes.computing, bytes.inputs, bytes.libraries);
  reset_device_peaks(device);
  if (has_room) return {};
  return formatted(
      "a GPU does not have the %.0f MiB that steps of full rows take, and %.0f MiB for their "
      "inputs. If memory runs out in a step, the host waits for the GPU, which in a pipeline can "
      "wait for ever; lower data.row_tokens, recompute more, or use more ranks",
      mebibytes(bytes.computing), mebibytes(bytes.inputs));
}

}  // namespace zea
