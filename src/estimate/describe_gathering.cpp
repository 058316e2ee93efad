// SPDX-License-Identifier: Apache-2.0
#include "estimate/describe_gathering.hpp"

#include <algorithm>

#include "estimate/mebibytes.hpp"
#include "estimate/traffic.hpp"
#include "layout/module_sharding.hpp"
#include "layout/reduction.hpp"

namespace zea {
namespace {

/// The module's first buffer that is gathered; null: none is.
const Sharding* gathered_sharding(const Plan& plan, const std::string& module) {
  for (size_t g = 0; g < plan.buffers.size(); ++g)
    if (plan.buffers[g].module == module && plan.shardings[g].gathered() &&
        plan.shardings[g].shards > 1)
      return &plan.shardings[g];
  return nullptr;
}

/// On the ranks of the module's place that has most, and the bytes that its ranks send to each
/// other for it.
std::string cost_of(const Plan& plan, const std::string& module, const StepSamples& samples) {
  const std::string group = group_name(module, gathered_sharding(plan, module)->sharded_over);
  int64_t held = 0, sent = 0;
  for (size_t p = 0; p < plan.slots.size(); ++p) {
    const int rank = plan.pipeline.stage_groups[p].first_rank;
    if (!plan.mesh.has(rank, module)) continue;
    const SlotPlans& slots = plan.slots[p];
    held = std::max(held, slots.gathered.total_bytes() + slots.gradients.total_bytes() +
                              slots.wire.total_bytes());
    const Traffic traffic = traffic_of_samples(plan, samples, rank);
    if (const auto found = traffic.find(group); found != traffic.end())
      sent = std::max(sent, found->second / samples.steps());
  }
  return detail::mebibytes(held) + " gathered and unreduced, " + detail::mebibytes(sent) + " sent";
}

/// Whether the strategy has another way.
bool reshards(const Plan& plan, const std::string& module) {
  return !plan.options.meshes[module].reshard_after_forward.is_auto() ||
         detail::may_gather_for_each_use(plan.options.meshes[module]);
}

std::string why(const Plan& plan, const std::string& module, bool once) {
  const AutoOption& asked = plan.options.meshes[module].reshard_after_forward;
  if (asked.is_yes()) return "reshard_after_forward = true";
  if (asked.is_no()) return "reshard_after_forward = false";
  if (!reshards(plan, module)) return "strategy = \"" + plan.options.meshes[module].strategy + "\"";
  const MeshOptions& mesh = plan.options.mesh;
  const std::string held = "mesh.memory_mib", all = "mesh.rank_memory_mib", either = " or ";
  if (mesh.memory_mib == 0 && mesh.rank_memory_mib == 0)
    return "auto, which gathers for each use only where " + held + either + all + " asks for it";
  const std::string limit = mesh.rank_memory_mib == 0 ? held
                            : mesh.memory_mib == 0    ? all
                                                      : held + either + all;
  return once ? "auto: within " + limit : "auto: more than " + limit + " otherwise";
}

}  // namespace

std::string describe_gathering(const Plan& plan, const StepSamples& samples) {
  if (plan.pipeline.is_one_group()) return "";
  std::string text;
  for (const std::string& module : plan.model.modules()) {
    const Sharding* sharding = gathered_sharding(plan, module);
    if (sharding == nullptr) continue;
    const bool once = sharding->keeps_for_step;
    const char* ways[] = {"each time that a unit needs it", "once a step"};
    text += "  " + module + ": gathered " + ways[once] + " (" + why(plan, module, once) +
            "): " + cost_of(plan, module, samples);
    if (reshards(plan, module))
      text += std::string("; ") + ways[!once] + ": " +
              cost_of(gathered_otherwise(plan, {module}, !once), module, samples);
    text += "\n";
  }
  if (text.empty()) return text;
  return "sharded units in this pipeline, per rank and step\n" + text;
}

}  // namespace zea
