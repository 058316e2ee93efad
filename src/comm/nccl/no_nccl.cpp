// SPDX-License-Identifier: Apache-2.0
// Replaces nccl_collectives.cpp if NCCL or the CUDA runtime is missing or disabled.
#include "comm/captured_graph.hpp"
#include "comm/communicator.hpp"
#include "comm/launch_order.hpp"
#include "comm/visible_gpus.hpp"
#include "core/error.hpp"

namespace zea {

std::unique_ptr<Collectives> make_nccl_collectives(const Communicator&, ComputeStream) {
  throw CommError(
      "this build has no NCCL: run on the CPU, or build with ZEA_ENABLE_NCCL=ON where nccl.h, "
      "libnccl, "
      "cuda_runtime.h and libcudart are found");
}

void abort_together(const std::vector<std::unique_ptr<Collectives>>& all) {
  for (const auto& one : all) one->abort();
}

CapturedGraph::CapturedGraph(void*, const std::function<void()>&) {
  throw CommError("this build has no NCCL, and so no graphs of GPUs");
}

CapturedGraph::~CapturedGraph() = default;

void CapturedGraph::launch(void*) const {}

LaunchVersions launch_versions() {
  return {};
}

bool has_nccl() {
  return false;
}

int num_cuda_devices() {
  return 0;
}

std::vector<VisibleGpu> visible_gpus() {
  return {};
}

GpuMemory gpu_memory() {
  return {};
}

}  // namespace zea
