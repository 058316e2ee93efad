// SPDX-License-Identifier: Apache-2.0
// Plans that no deck asks for: the buffers of one module on ranks of their own.
#pragma once

#include <utility>
#include <vector>

#include "layout/reduction.hpp"
#include "schedule/plan.hpp"

namespace zea::testing {

/// Every buffer is sharded and summed over other axes than the one before it.
inline void scatter_buffers(Plan& plan) {
  using Axes = std::vector<Axis>;
  const std::pair<Axes, Axes> ways[] = {
      {shard_axes(), {Axis::DpReplicate}},
      {{Axis::DpReplicate}, shard_axes()},
      {token_axes(), {}},
      {{}, token_axes()},
      {{Axis::DpReplicate, Axis::EncoderDp, Axis::Cp}, {Axis::DpShard}},
  };
  for (ModuleGrid& grid : plan.mesh.modules)
    for (const auto& [sharded, summed] : ways)
      for (const Axes& axes : {sharded, summed})
        if (!axes.empty()) grid.buffer_axes.push_back(axes);
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    const auto& [sharded, summed] = ways[g % std::size(ways)];
    set_placement(plan.shardings[g], plan.mesh, plan.buffers[g].module, sharded, summed);
  }
  plan.slots = make_slots(plan.schedule_parts(), plan.precisions);
}

}  // namespace zea::testing
