// SPDX-License-Identifier: Apache-2.0
// All-reduces among the ranks of a node, of neighbouring nodes, and of all: whether they are right,
// and how fast.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/mesh.hpp"
#include "comm/world.hpp"
#include "core/action_record.hpp"
#include "preflight/measurements.hpp"

namespace zea {

/// Between which memory sums are taken, by what, and of how many bytes.
struct LinkEnds {
  at::Device device;
  MakeCollectives make;
  int64_t bytes;

  /// Those of zea on `device`, of as much as tells how fast it is.
  static LinkEnds of(at::Device device);
};

/// Fills in inside, pairs and everyone. Collective over all ranks, whose host collectives `control`
/// are.
void measure_links(const World& world, Collectives& control, const LinkEnds& ends,
                   ActionRecord& record, Measurements& measured);

}  // namespace zea
