// SPDX-License-Identifier: Apache-2.0
// The GPU that a test's rank takes.
#pragma once

#include "comm/node_memory.hpp"
#include "comm/world.hpp"
#include "parallel/device.hpp"

namespace zea::testing {

/// One per rank, or several ranks on each where there are fewer (NCCL then takes them for those of
/// several nodes). There is at least one.
inline at::Device open_gpu(const World& world) {
  RunOptions run;
  run.device = DeviceKind::Cuda;
  run.ranks_per_gpu = (world.local_size() + num_cuda_devices() - 1) / num_cuda_devices();
  return open_device(run, gpus_on_node(world, find_gpus(run.device)), world.local_rank());
}

}  // namespace zea::testing
