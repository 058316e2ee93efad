// SPDX-License-Identifier: Apache-2.0
// Stands for cuda_graph_memory.cpp where libtorch or this build has no CUDA, or Kokkos launches
// kernels.
#include "zea/core/error.hpp"
#include "zea/parallel/graph_memory.hpp"

namespace zea {

void check_graph_memory() {
  throw PlanError(
      "run.cuda_graphs: this build keeps no graphs; build with a libtorch that has CUDA, and with "
      "row kernels that Kokkos does not launch (ZEA_ENABLE_CUDA_KERNELS=OFF), or leave it out");
}

GraphMemory::GraphMemory(c10::Stream stream) : stream_(stream) {
  check_graph_memory();
}

GraphMemory::~GraphMemory() = default;

void GraphMemory::close() {}

}  // namespace zea
