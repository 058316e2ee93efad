// SPDX-License-Identifier: Apache-2.0
// Replaces cuda_graph_memory.cpp if libtorch or this build has no CUDA, or Kokkos launches kernels.
#include "core/error.hpp"
#include "parallel/device_memory.hpp"

namespace zea {

c10::MempoolId_t new_graph_pool() {
  return {};
}

GraphMemory::GraphMemory(c10::MempoolId_t pool, c10::Stream stream) : pool_(pool), stream_(stream) {
  throw PlanError(
      "run.cuda_graphs: this build keeps no graphs; build with a libtorch that has CUDA, and with "
      "row kernels that Kokkos does not launch (ZEA_ENABLE_CUDA_KERNELS=OFF), or leave it out");
}

GraphMemory::~GraphMemory() = default;

void GraphMemory::close() {}

}  // namespace zea
