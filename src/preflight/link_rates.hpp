// SPDX-License-Identifier: Apache-2.0
// All-reduces among the ranks of a node, of neighbouring nodes, and of all: whether they are right,
// and how fast.
#pragma once

#include <ATen/core/Tensor.h>

#include "zea/comm/world.hpp"
#include "zea/core/action_record.hpp"
#include "zea/preflight/measurements.hpp"

namespace zea {

/// Fills in inside, pairs and everyone, for memory on `device`. Collective over all ranks, whose
/// host collectives `control` are.
void measure_links(const World& world, Collectives& control, at::Device device,
                   ActionRecord& record, Measurements& measured);

}  // namespace zea
