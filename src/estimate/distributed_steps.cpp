// SPDX-License-Identifier: Apache-2.0
#include "estimate/distributed_steps.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "estimate/step_facts.hpp"

namespace zea {
namespace {

/// Costs times a power of two, so that those of layouts which differ in their number of ranks are
/// equal bit for bit where they distribute samples alike.
std::vector<SampleCosts> normalized(std::vector<SampleCosts> all) {
  const SampleCosts& first = all.front();
  const double scale = first.token > 0 ? first.token : 1;
  const double factor = std::ldexp(1.0, -std::ilogb(scale));
  for (SampleCosts& costs : all) {
    for (double* cost : {&costs.token, &costs.pair, &costs.target}) *cost *= factor;
    for (ItemCost& item : costs.items) {
      item.usual *= factor;
      item.pairs *= factor;
    }
    for (WindowCost& window : costs.windows) window.pair *= factor;
  }
  return all;
}

/// A step, and what its replicas have in each microbatch.
struct SharedStep {
  DistributedStep most;
  std::vector<std::vector<MicrobatchKind>> kinds;  ///< of each replica; empty: all as the first
};

SharedStep shared_step(const Plan& plan, const StepSamples& samples, StepPlan step) {
  const std::vector<double> loads = detail::replica_flops(plan, samples, step);
  const auto most = std::ranges::max_element(loads);
  SharedStep shared;
  shared.most.replica = static_cast<int>(most - loads.begin());
  const double all = std::accumulate(loads.begin(), loads.end(), 0.0);
  shared.most.balance = *most > 0 ? all / (*most * static_cast<double>(loads.size())) : 1;
  bool is_alike = true;
  for (const std::vector<MicrobatchPlan>& microbatches : step.replicas) {
    std::vector<MicrobatchKind>& kinds = shared.kinds.emplace_back();
    for (const MicrobatchPlan& microbatch : microbatches) kinds.push_back(microbatch.kind());
    is_alike = is_alike && kinds == shared.kinds.front();
  }
  if (is_alike) shared.kinds.resize(std::min<size_t>(shared.kinds.size(), 1));
  step.replicas = {std::move(step.replicas[static_cast<size_t>(shared.most.replica)])};
  step.shard_group = 1;
  step.group_kinds.clear();
  shared.most.plan = std::move(step);
  return shared;
}

/// Each kind once, of the replicas from `first` to `end`.
std::vector<MicrobatchKinds> kinds_of(const SharedStep& step, size_t first, size_t end) {
  std::vector<MicrobatchKinds> kinds(step.kinds.front().size());
  if (step.kinds.size() == 1) first = 0, end = 1;
  for (size_t replica = first; replica < end; ++replica)
    for (size_t m = 0; m < kinds.size(); ++m)
      if (const MicrobatchKind& kind = step.kinds[replica][m];
          std::ranges::find(kinds[m], kind) == kinds[m].end())
        kinds[m].push_back(kind);
  return kinds;
}

}  // namespace

struct DistributedSteps::Dealing {
  int replicas, expert_group;
  std::vector<SampleCosts> costs;
  std::vector<SharedStep> steps = {};
};

DistributedSteps::DistributedSteps(const StepSamples& samples) : samples_(samples) {}
DistributedSteps::~DistributedSteps() = default;

std::vector<DistributedStep> DistributedSteps::of(const Plan& plan) {
  const int replicas = plan.dealing.replicas, expert_group = plan.dealing.expert_group;
  const std::vector<SampleCosts> costs = normalized(plan.dealing.costs);
  auto found = std::ranges::find_if(known_, [&](const auto& dealing) {
    return dealing->replicas == replicas && dealing->expert_group == expert_group &&
           dealing->costs == costs;
  });
  if (found == known_.end()) {
    auto dealing = std::make_unique<Dealing>(Dealing{replicas, expert_group, costs});
    for (StepPlan& step : plan_steps(plan, samples_))
      dealing->steps.push_back(shared_step(plan, samples_, std::move(step)));
    known_.push_back(std::move(dealing));
    found = std::prev(known_.end());
  }
  std::vector<DistributedStep> steps;
  for (const SharedStep& shared : (*found)->steps) {
    DistributedStep& step = steps.emplace_back(shared.most);
    const auto group = static_cast<size_t>(plan.dealing.shard_group);
    const size_t first = static_cast<size_t>(step.replica) / group * group;
    step.plan.group_kinds = {kinds_of(shared, first, first + group)};
  }
  return steps;
}

}  // namespace zea
