// SPDX-License-Identifier: Apache-2.0
#include "parallel/device.hpp"

#include "core/error.hpp"
#include "core/text.hpp"
#include "schedule/communicators.hpp"

namespace zea {
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
  // Shards with no replicated parameters have no group of holders, but then have two others: all
  // ranks of a stage group agree whether there are several.
  constexpr int kRank = 0;
  const auto communicators = communicators_of_groups(plan, kRank);
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
