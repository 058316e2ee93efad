// SPDX-License-Identifier: Apache-2.0
#include "zea/plan.hpp"

#include <algorithm>

#include "deck/deck.hpp"
#include "estimate/describe.hpp"
#include "estimate/fitting_plan.hpp"
#include "io/model_source.hpp"
#include "layout/rank_order.hpp"
#include "library/plan_text.hpp"

namespace zea {
namespace {

RankMemory memory_of(const MemoryEstimate& estimate) {
  return {.parameters = estimate.parameters,
          .optimizer_states = estimate.states,
          .gradients = estimate.gradients,
          .gathered = estimate.gathered,
          .activations = estimate.activations,
          .keys = estimate.keys,
          .graphs = estimate.graphs,
          .libraries = estimate.libraries,
          .offloaded = estimate.host};
}

std::vector<RankGroup> groups_of(const Plan& plan, const StepFacts& facts) {
  const std::vector<MemoryEstimate> memory = estimate_groups(plan, predicted_microbatches(plan));
  std::vector<RankGroup> groups;
  for (size_t group = 0; group < memory.size(); ++group)
    groups.push_back({.name = plan.pipeline.stage_groups[group].name,
                      .first_rank = plan.pipeline.stage_groups[group].first_rank,
                      .memory = memory_of(memory[group])});
  for (const RankTraffic& traffic : facts.traffic) {
    RankGroup& group = groups.at(static_cast<size_t>(plan.group_of(traffic.rank)));
    for (const auto& [name, bytes] : traffic.sent) group.sent[name] = bytes / facts.steps;
  }
  return groups;
}

}  // namespace

Plan plan_of(const Start& start, int ranks) {
  Plan plan = make_fitting_plan(start.options, start.config_json, ranks, start.profile);
  if (!start.weights) return plan;
  if (!start.weights->has_weights())
    plan.notes.push_back(start.weights->note());
  else
    check_head_that_trains(plan.model, *start.weights);
  return plan;
}

std::string plan_text(const Start& start, const Plan& plan, const StepSamples& samples,
                      const StepFacts& facts, const PlannedHardware& on,
                      const std::string& data_notes) {
  const RankOrder order = planned_order(plan, on.ranks_per_node);
  std::string text = describe(plan) + start.note + "\n" + describe_ranks(plan, order, samples) +
                     data_notes + describe_steps(plan, samples, facts);
  if (on.hardware)
    text += describe_time(
        plan, samples, step_time(plan, samples, *on.hardware, order.node_of_logical), *on.hardware);
  return text + list_passes(plan) + "\n# the deck with every key\n\n" + echo_deck(start.options);
}

PlannedRun plan_run(const PlanRequest& request) {
  CommandLine line;
  line.deck = request.deck;
  line.restart = request.checkpoint;
  line.overrides = request.overrides;
  line.plan_only = true;
  const Start start = read_start(line, request.ranks);
  const Plan plan = plan_of(start, request.ranks);
  const StepSamples samples = synthetic_samples(plan);
  const StepFacts facts = facts_of(plan, samples);
  return {.text = plan_text(start, plan, samples, facts, {.ranks_per_node = request.ranks_per_node},
                            ""),
          .ranks = plan.world_size(),
          .replicas = plan.mesh.replicas(),
          .groups = groups_of(plan, facts),
          .model_flops = facts.model_flops,
          .samples = facts.samples,
          .tokens = facts.tokens,
          .notes = plan.notes};
}

}  // namespace zea
