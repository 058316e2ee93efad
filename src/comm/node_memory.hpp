// SPDX-License-Identifier: Apache-2.0
// Memory of every rank that the other ranks of its node can read, even if that rank's process hangs
// or has died.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"

namespace zea {

class NodeMemory {
 public:
  /// Makes zeroed memory, `bytes` for each rank. If a node's ranks cannot share memory, each of
  /// them counts as a node. `node`: the node of this rank; by default MPI's answer. Collective.
  static NodeMemory build(const Communicator& world, int64_t bytes,
                          std::optional<int> node = std::nullopt);

  /// World ranks on this rank's node, ascending, and the memory of each.
  const std::vector<int>& ranks() const { return ranks_; }
  std::byte* of(size_t index) const { return memory_[index]; }
  std::byte* own() const { return memory_[own_]; }
  int own_rank() const { return ranks_[own_]; }
  /// The lowest world rank of every node, ascending, which identifies the node.
  const std::vector<int>& nodes() const { return nodes_; }

 private:
  std::vector<int> ranks_, nodes_;
  std::vector<std::byte*> memory_;
  size_t own_ = 0;
  std::shared_ptr<void> keeps_;  ///< the memory
};

}  // namespace zea
