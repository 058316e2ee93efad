// SPDX-License-Identifier: Apache-2.0
#include "parallel/device.hpp"

#include <map>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"

namespace zea {
namespace {

/// Returns the groups, by their ranks, in which a rank without a pipeline communicates during a
/// step. The collectives that end a step run when nothing else is in flight.
std::map<std::vector<int>, std::string> groups_of_walk(const Plan& plan) {
  constexpr int kRank = 0;  // all have the like
  std::map<std::vector<int>, std::string> groups;
  const auto add = [&](const std::string& name, const std::vector<int>& ranks) {
    if (ranks.size() > 1) groups.emplace(ranks, name);
  };
  for (const ModuleGrid& grid : plan.mesh.modules) {
    const std::string& module = grid.module;
    add(module + ".tp", plan.mesh.group(kRank, module, {Axis::Tp}));
    add(module + ".ep_cp", plan.mesh.group(kRank, module, {Axis::EpCp}));
    add(module + ".ep_dp_shard", plan.mesh.group(kRank, module, {Axis::EpDpShard}));
    add(module + ".kv_holders", piece_holders(plan.mesh, kRank, module, grid.kv_holders));
    add(module + ".cp_inner", cp_inner_group(plan.mesh, kRank, module));
    add(module + ".cp_outer", cp_outer_group(plan.mesh, kRank, module));
  }
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    const std::string& module = plan.buffers[g].module;
    const Sharding& sharding = plan.shardings[g];
    add(module + "'s shards", plan.mesh.group(kRank, module, sharding.sharded_over));
    if (plan.buffers[g].trainable)
      add(module + "'s replicas", plan.mesh.group(kRank, module, sharding.summed_over));
    if (sharding.subgroup > 0)
      add(module + "'s shard_subgroup",
          shard_subgroup(plan.mesh, kRank, module, sharding.subgroup));
  }
  return groups;
}

}  // namespace

std::string launch_order_fault(const Plan& plan, const LaunchVersions& versions) {
  if (!plan.pipeline.is_one_group()) {
    const std::string fault = launch_order_fault(versions, CallOrder::OfEachRank);
    if (fault.empty()) return {};
    return "run.device = \"cuda\" with " + std::to_string(plan.pipeline.stage_groups.size()) +
           " stage groups: " + fault +
           ", or train without a pipeline (pp = 1, mesh.placement = \"shared\")";
  }
  const std::map<std::vector<int>, std::string> groups = groups_of_walk(plan);
  if (groups.size() < 2) return {};
  const std::string fault = launch_order_fault(versions, CallOrder::SameOnAllRanks);
  if (fault.empty()) return {};
  return "run.device = \"cuda\" with ranks that communicate in several groups (" +
         join(groups, ", ", [](const auto& group) { return group.second; }) + "): " + fault +
         ", or train in one group (tp = 1, cp = 1 and no hybrid strategy, or one replica)";
}

void check_launch_order(const Plan& plan, at::Device device) {
  if (device.is_cpu()) return;
  const std::string fault = launch_order_fault(plan, launch_versions());
  if (!fault.empty()) throw PlanError(fault);
}

}  // namespace zea
