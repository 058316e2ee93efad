// SPDX-License-Identifier: Apache-2.0
// When a pipeline gathers its sharded buffers: once per step, which sends least, or for each use,
// which takes the least memory (ZeRO-3).
#include "schedule/plan.hpp"

#include "layout/flat_layout.hpp"
#include "layout/module_sharding.hpp"

namespace zea {
namespace detail {
namespace {

/// Bytes of parameters, gathered ones among them, gradients and the optimizer's state on a rank of
/// a stage group, but for what lies in host memory.
int64_t held_bytes(const Plan& plan, size_t group) {
  const SlotPlans& slots = plan.slots[group];
  int64_t bytes =
      slots.gathered.total_bytes() + slots.gradients.total_bytes() + slots.wire.total_bytes();
  for (const int g : plan.held_buffers(plan.pipeline.stage_groups[group].first_rank)) {
    if (plan.shardings[g].offloads) continue;
    const FlatBuffer& buffer = plan.buffers[g];
    const int shards = plan.shardings[g].shards;
    const Precision& precision = plan.precision_of(buffer.module);
    bytes += buffer.padded(shards) / shards *
             owned_bytes(precision, buffer.trainable, buffer.is_computed_with()).total();
    if (buffer.trainable)
      bytes += state_bytes(plan.optimizer, buffer, plan.param_rules, shard_range(buffer, 0, shards),
                           precision.master);
  }
  return bytes;
}

}  // namespace

bool is_beyond_memory(const Plan& plan, size_t group) {
  const auto limit = static_cast<int64_t>(plan.options.mesh.memory_mib * (1 << 20));
  return limit > 0 && held_bytes(plan, group) > limit;
}

Plan gathered_within(Plan plan, const std::function<bool(const Plan&, size_t)>& is_beyond) {
  if (plan.pipeline.is_one_group()) return plan;
  std::set<std::string> modules;
  for (size_t group = 0; group < plan.slots.size(); ++group)
    if (is_beyond(plan, group))
      for (int stage : plan.pipeline.stage_groups[group].stages)
        for (int unit : plan.pipeline.stages[stage].units)
          if (const std::string& module = plan.model.units[unit].module;
              may_gather_for_each_use(plan.options.meshes[module]))
            modules.insert(module);
  return modules.empty() ? plan : gathered_otherwise(std::move(plan), modules, false);
}

}  // namespace detail

Plan gathered_otherwise(Plan plan, const std::set<std::string>& modules, bool once_a_step) {
  for (size_t g = 0; g < plan.buffers.size(); ++g)
    if (const std::string& module = plan.buffers[g].module;
        modules.contains(module) && plan.shardings[g].gathered())
      detail::gather(plan.shardings[g], plan.options.meshes[module], once_a_step);
  plan.slots = make_slots(plan.schedule_parts(), plan.precisions);
  return plan;
}

}  // namespace zea
