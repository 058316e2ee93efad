// SPDX-License-Identifier: Apache-2.0
// Memory of graphs: what tensors of a captured walk get comes from a pool that nobody else is given
// memory of, since a graph uses the same addresses whenever it is launched. Graphs that are
// launched one after the other share a pool.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include "kernels/launch.hpp"  // by which a stream is captured

namespace zea {

/// One that no other graphs have.
c10::MempoolId_t new_graph_pool();

class GraphMemory {
 public:
  /// From now on what is allocated on `stream`, by any thread, comes from the pool. What the
  /// device's allocator keeps for later is given back first. Throws PlanError where this build
  /// keeps no graphs.
  GraphMemory(c10::MempoolId_t pool, c10::Stream stream);
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  /// The pool ends with the last of these, and libtorch refuses one that has ended while anything
  /// in it lives, as the workspaces of cuBLAS do.
  ~GraphMemory();

  /// Nothing more is allocated from the pool for this one; what was stays its.
  void close();

 private:
  c10::MempoolId_t pool_;
  c10::Stream stream_;
  bool is_open_ = true;
};

}  // namespace zea
