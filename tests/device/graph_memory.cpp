// SPDX-License-Identifier: Apache-2.0
// Stands before src/parallel/cuda_graph_memory.cpp. Each graph has a pool of its own here, so that
// the memory of one that is gone is nobody's.
#include "zea/parallel/graph_memory.hpp"

#include <map>

#include "device/device.hpp"
#include "device/torch_device.hpp"

namespace zea {
namespace {

std::map<const GraphMemory*, int> pools;  // of those that are there
int made = 0;

}  // namespace

void check_graph_memory() {}

GraphMemory::GraphMemory(c10::Stream stream) : stream_(stream) {
  pools[this] = ++made;
  testing::allocate_from_pool(stream.id(), made);
}

GraphMemory::~GraphMemory() {
  close();
  testing::device().release(pools.extract(this).mapped());
}

void GraphMemory::close() {
  if (is_open_) {
    testing::allocate_from_pool(stream_.id(), 0);
    testing::device().forget_values(pools.at(this));
  }
  is_open_ = false;
}

}  // namespace zea
