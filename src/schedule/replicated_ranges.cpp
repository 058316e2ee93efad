// SPDX-License-Identifier: Apache-2.0
#include "schedule/replicated_ranges.hpp"

#include <algorithm>

#include "layout/reduction.hpp"

namespace zea {
namespace {

void add_range(ReplicatedRanges& sum, const ReplicatedRange& range) {
  ReplicatedRange* last = sum.ranges.empty() ? nullptr : &sum.ranges.back();
  if (last && last->buffer == range.buffer && last->scale == range.scale &&
      last->begin + last->elements == range.begin)
    last->elements += range.elements;
  else
    sum.ranges.push_back(range);
}

void add_buffer(ReplicatedRanges& sum, const Plan& plan, int world_rank, int buffer) {
  const FlatBuffer& layout = plan.buffers[buffer];
  const FlatRange range =
      shard_range(layout, plan.shard_of(world_rank, buffer), plan.shardings[buffer].shards);
  if (sum.is_tied()) {
    if (plan.stages_of_buffer(buffer) == plan.mesh.grid(sum.module).tied_stages[sum.holders.tied])
      add_range(sum, {buffer, 0, range.end - range.begin, 1});
    return;
  }
  const bool sequence_parallel = plan.token_shardings.at(sum.module).sequence_parallel;
  for (const FlatPart& part : parts_in_range(layout, range)) {
    const ParamShard& cut = plan.cuts[part.param];
    if (cut.holders == 1 || (cut.dim < 0) != (sum.holders.group == ReplicationKind::Tp)) continue;
    add_range(sum, {buffer, part.flat_begin - range.begin, part.elements,
                    holder_scale(cut, sequence_parallel)});
  }
}

}  // namespace

int64_t ReplicatedRanges::elements(const std::vector<bool>& buffers_with_gradient) const {
  int64_t sum = 0;
  for (const ReplicatedRange& range : ranges)
    if (buffers_with_gradient[range.buffer]) sum += range.elements;
  return sum;
}

std::vector<ReplicationGroup> replication_groups(const ModuleGrid& grid) {
  std::vector<ReplicationGroup> sets{{ReplicationKind::Tp}, {ReplicationKind::Kv}};
  for (int set = 0; set < std::ssize(grid.tied_stages); ++set)
    sets.push_back({ReplicationKind::Tied, set});
  return sets;
}

std::vector<ReplicatedRanges> replicated_ranges(const Plan& plan, int world_rank) {
  std::vector<ReplicatedRanges> sums;
  for (const ModuleGrid& grid : plan.mesh.modules)
    for (const ReplicationGroup& holders : replication_groups(grid)) {
      ReplicatedRanges sum{grid.module, holders, {}};
      for (const int g : plan.held_buffers(world_rank))
        if (plan.buffers[g].trainable && plan.buffers[g].module == grid.module)
          add_buffer(sum, plan, world_rank, g);
      if (sum.ranges.empty()) continue;
      const ReplicatedRange& first = sum.ranges.front();
      sum.in_place =
          sum.ranges.size() == 1 && first.scale == 1 && !plan.shardings[first.buffer].offloads;
      sums.push_back(std::move(sum));
    }
  return sums;
}

int64_t packed_replicated_bytes(const Plan& plan, int world_rank) {
  const std::vector<bool> all(plan.buffers.size(), true);
  int64_t tied = 0, others = 0;
  for (const ReplicatedRanges& sum : replicated_ranges(plan, world_rank))
    if (!sum.in_place) (sum.is_tied() ? tied : others) += sum.elements(all);
  return std::max(tied, others) * static_cast<int64_t>(element_bytes(plan.precision.master));
}

}  // namespace zea
