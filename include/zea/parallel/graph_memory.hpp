// SPDX-License-Identifier: Apache-2.0
// Memory of graphs: what tensors of a captured walk get comes from a pool that nobody else is given
// memory of, since a graph uses the same addresses whenever it is launched. All graphs share the
// pool: they are launched one after the other.
#pragma once

#include <c10/core/Stream.h>

namespace zea {

/// Throws PlanError where this build has none.
void check_graph_memory();

class GraphMemory {
 public:
  /// From now on what is allocated on `stream`, by any thread, comes from the pool. What the
  /// device's allocator keeps for later is given back first.
  explicit GraphMemory(c10::Stream stream);
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  /// The pool ends with the last of these.
  ~GraphMemory();

  /// Nothing more is allocated from the pool for this one; what was stays its.
  void close();

 private:
  c10::Stream stream_;
  bool is_open_ = true;
};

}  // namespace zea
