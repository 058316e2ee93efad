// SPDX-License-Identifier: Apache-2.0
// Replaces src/parallel/cuda_graph_memory.cpp. Memory that graphs get from a pool is separate here,
// so that the memory of a deleted graph belongs to nobody.
#include "parallel/device_memory.hpp"

#include <map>

#include "device/device.hpp"
#include "device/torch_device.hpp"

namespace zea {
namespace {

std::map<const GraphMemory*, int> parts;  // of those that are there
int made = 0;
std::map<c10::MempoolId_t, int> users;  // those that have ended are here, too

c10::MempoolId_t add_user(c10::MempoolId_t pool) {
  const auto [known, is_new] = users.try_emplace(pool, 0);
  TORCH_CHECK(is_new || known->second > 0, "a pool of graphs is used again that has ended");
  ++known->second;
  return pool;
}

}  // namespace

c10::MempoolId_t new_graph_pool() {
  static c10::CaptureId_t last = 0;
  return {0, ++last};
}

GraphMemory::GraphMemory(c10::MempoolId_t pool, c10::Stream stream)
    : pool_(add_user(pool)), stream_(stream) {
  parts[this] = ++made;
  testing::allocate_from_pool(stream.id(), made);
}

GraphMemory::~GraphMemory() {
  close();
  testing::device().release(parts.extract(this).mapped());
  --users.at(pool_);
}

void GraphMemory::close() {
  if (is_open_) {
    testing::allocate_from_pool(stream_.id(), 0);
    testing::device().forget_values(parts.at(this));
  }
  is_open_ = false;
}

}  // namespace zea
