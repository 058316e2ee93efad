// SPDX-License-Identifier: Apache-2.0
#include "parallel/device.hpp"

#include <map>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"

namespace zea {
namespace {

/// Returns the communicators, by their ranks and whether they reduce gradients to shards, in which
/// a rank without a pipeline communicates during a step. The collectives that end a step run when
/// nothing else is in flight.
std::map<std::pair<std::vector<int>, bool>, std::string> communicators_of_walk(const Plan& plan) {
  constexpr int kRank = 0;  // all have the like
  std::map<std::pair<std::vector<int>, bool>, std::string> communicators;
  const auto add = [&](const std::string& name, const std::vector<int>& ranks,
                       bool reduces = false) {
    if (ranks.size() > 1) communicators.emplace(std::pair(ranks, reduces), name);
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
    const std::vector<int> shards = plan.mesh.group(kRank, module, sharding.sharded_over);
    add(module + "'s shards", shards);
    if (plan.buffers[g].trainable) {
      add(module + "'s reductions", shards, true);
      add(module + "'s replicas", plan.mesh.group(kRank, module, sharding.summed_over));
    }
    if (sharding.subgroup > 0)
      add(module + "'s shard_subgroup",
          shard_subgroup(plan.mesh, kRank, module, sharding.subgroup));
  }
  return communicators;
}

}  // namespace

std::string launch_order_fault(const Plan& plan, const LaunchVersions& versions) {
  if (plan.options.run.cuda_graphs > 0 && plan.world_size() > 1 && !versions.mixes_graphs)
    return "run.cuda_graphs = " + std::to_string(plan.options.run.cuda_graphs) +
           " with NCCL_GRAPH_MIXING_SUPPORT=0 in the environment: steps in graphs and others use "
           "the same communicators, which NCCL then does not order; unset it, or set "
           "run.cuda_graphs = 0";
  if (!plan.pipeline.is_one_group()) {
    const std::string fault = launch_order_fault(versions, CallOrder::OfEachRank);
    if (fault.empty()) return {};
    return "run.device = \"cuda\" with " + std::to_string(plan.pipeline.stage_groups.size()) +
           " stage groups: " + fault +
           ", or train without a pipeline (pp = 1, mesh.placement = \"shared\")";
  }
  const auto communicators = communicators_of_walk(plan);
  if (communicators.size() < 2) return {};
  const std::string fault = launch_order_fault(versions, CallOrder::SameOnAllRanks);
  if (fault.empty()) return {};
  return "run.device = \"cuda\" with ranks that communicate in several groups (" +
         join(communicators, ", ", [](const auto& one) { return one.second; }) + "): " + fault +
         ", or train in one group (tp = 1, cp = 1 and strategy = \"no_shard\", or one replica)";
}

void check_launch_order(const Plan& plan, at::Device device) {
  if (device.is_cpu()) return;
  const std::string fault = launch_order_fault(plan, launch_versions());
  if (!fault.empty()) throw PlanError(fault);
}

}  // namespace zea
