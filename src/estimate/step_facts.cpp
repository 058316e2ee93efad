// SPDX-License-Identifier: Apache-2.0
#include "estimate/step_facts.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "estimate/traffic.hpp"
#include "schedule/simulate.hpp"

namespace zea {
namespace {

/// FLOPs of a rank in a step, of each unit.
std::vector<UnitCost> rank_flops(const Plan& plan, const std::vector<MicrobatchRows>& microbatches,
                                 int world_rank) {
  const ModelSpec& model = plan.model;
  const bool trains = plan.options.run.mode == RunMode::Train;
  const std::vector<bool> gradients = model.units_with_gradient();
  std::vector<UnitCost> costs(model.units.size());
  for (size_t u = 0; u < costs.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    const int number = static_cast<int>(u);
    if (plan.pipeline.group_of_unit(number) != plan.group_of(world_rank)) continue;
    const double tp = plan.mesh.grid(unit.module).tp;
    for (const MicrobatchRows& microbatch : microbatches) {
      const ModuleRows& rows = microbatch.of(unit.module);
      const UnitWork flops =
          unit_flops(model, number, detail::rows_of_unit(model, unit, rows), gradients);
      const double pairs = detail::pairs_of_unit(model, unit, rows),
                   forward = flops.rows.forward + pairs * flops.pair.forward;
      costs[u].forward += forward / tp;
      if (!trains) continue;
      const double again = plan.recomputes(number) && gradients[u] ? forward : 0;
      costs[u].backward_input +=
          (flops.rows.backward_input + pairs * flops.pair.backward_input + again) / tp;
      costs[u].backward_weight += flops.rows.backward_weight / tp;
    }
  }
  return costs;
}

double total_of(const std::vector<UnitCost>& costs) {
  return std::accumulate(costs.begin(), costs.end(), 0.0,
                         [](double sum, const UnitCost& cost) { return sum + cost.total(); });
}

struct Work {
  double slowest = 0;  ///< of a rank
  double useful = 0;   ///< of all its ranks
  double makespan = 0;
};

/// The work of a replica in a step.
Work work_of(const Plan& plan, const StepSamples& samples, const StepPlan& step, int replica) {
  Work work;
  const int ranks = plan.mesh.ranks_per_replica();
  std::vector<UnitCost> slowest(plan.model.units.size());  // of the ranks that have it
  for (int inside = 0; inside < ranks; ++inside) {
    const int rank = replica * ranks + inside;
    if (detail::is_repeated(plan, rank)) continue;
    const auto costs = rank_flops(plan, rows_of_step(plan, samples, step, rank), rank);
    const double total = total_of(costs);
    work.slowest = std::max(work.slowest, total);
    // Its tp ranks have as much where modules have no other layout there.
    double alike = plan.world_size();
    for (const ModuleGrid& grid : plan.mesh.modules)
      if (plan.mesh.has(rank, grid.module)) alike = std::min<double>(alike, grid.tp);
    work.useful += total * alike;
    for (size_t u = 0; u < costs.size(); ++u)
      if (costs[u].total() > slowest[u].total()) slowest[u] = costs[u];
  }
  work.makespan = work.slowest;
  const int microbatches = step.num_microbatches();
  if (plan.pipeline.is_one_group() || microbatches == 0) return work;
  for (UnitCost& cost : slowest) {
    cost.forward /= microbatches;
    cost.backward_input /= microbatches;
    cost.backward_weight /= microbatches;
  }
  work.makespan =
      std::max(work.slowest, simulate(plan.pipeline, plan.model, slowest, microbatches).makespan);
  return work;
}

void add_work(StepFacts& facts, const Plan& plan, const StepSamples& samples,
              const StepPlan& step) {
  const std::vector<double> replicas = detail::replica_flops(plan, samples, step);
  const auto slowest = std::ranges::max_element(replicas);
  const Work work = work_of(plan, samples, step, static_cast<int>(slowest - replicas.begin()));
  facts.slowest_flops += work.slowest;
  if (work.makespan == 0) return;
  const double of_slowest = *slowest * static_cast<double>(replicas.size());
  const double even =
      of_slowest > 0 ? std::accumulate(replicas.begin(), replicas.end(), 0.0) / of_slowest : 1;
  facts.idle_share += 1 - even * work.useful / (work.makespan * plan.mesh.ranks_per_replica());
}

void add_counts(StepFacts& facts, const Plan& plan, const StepPlan& step) {
  facts.samples += static_cast<double>(step.samples);
  facts.tokens += static_cast<double>(step.tokens);
  facts.targets += static_cast<double>(step.targets);
  facts.model_flops += step.model_flops;
  facts.microbatches += step.num_microbatches();
  int64_t rows = 0;
  for (const auto& replica : step.replicas)
    for (const MicrobatchPlan& microbatch : replica) {
      rows += microbatch.rows;
      for (const ItemList::Run& run : microbatch.items.runs())
        facts.items += static_cast<double>(run.items);
    }
  if (rows > 0)
    facts.fill +=
        static_cast<double>(step.tokens) / static_cast<double>(rows * plan.options.data.row_tokens);
}

int64_t most_tokens(const std::vector<MicrobatchPlan>& microbatches) {
  return std::ranges::max(microbatches, {}, &MicrobatchPlan::tokens).tokens;
}

/// Replicas that may need most memory in a step: of many, those with most at once or in all.
std::set<size_t> fullest_replicas(const StepPlan& step) {
  constexpr size_t kFew = 16;
  std::set<size_t> fullest{0};
  if (step.replicas.size() <= kFew) {
    for (size_t r = 0; r < step.replicas.size(); ++r) fullest.insert(r);
    return fullest;
  }
  if (step.num_microbatches() == 0) return fullest;
  const auto all = [](const std::vector<MicrobatchPlan>& microbatches) {
    return std::accumulate(microbatches.begin(), microbatches.end(), int64_t{0},
                           [](int64_t sum, const auto& part) { return sum + part.tokens; });
  };
  fullest.insert(static_cast<size_t>(std::ranges::max_element(step.replicas, {}, most_tokens) -
                                     step.replicas.begin()));
  fullest.insert(static_cast<size_t>(std::ranges::max_element(step.replicas, {}, all) -
                                     step.replicas.begin()));
  return fullest;
}

void add_memory(StepFacts& facts, const Plan& plan, const StepSamples& samples,
                const StepPlan& step) {
  for (const size_t replica : fullest_replicas(step))
    for (const StageGroup& group : plan.pipeline.stage_groups) {
      const int rank = static_cast<int>(replica) * plan.mesh.ranks_per_replica() + group.first_rank;
      MemoryEstimate memory = estimate_memory(plan, rank, step.replicas[replica], samples.index);
      if (memory.total() <= facts.memory.total()) continue;
      facts.memory = std::move(memory);
      facts.memory_step = step.step;
    }
}

}  // namespace

namespace detail {

UnitSizes rows_of_unit(const ModelSpec& model, const UnitSpec& unit, const ModuleRows& rows) {
  const int64_t tokens = unit.kind == UnitKind::Head ? rows.read.all() : rows.held.all();
  if (unit.encoder < 0) return UnitSizes::whole(tokens, tokens, 0, 0);
  const EncoderSpec& encoder = model.encoders[static_cast<size_t>(unit.encoder)];
  const ItemShape usual = encoder.item_shape();
  const auto in_proportion = [](int64_t rows, int64_t of, int64_t to) {
    return to == 0 ? 0 : rows * of / to;
  };
  const int64_t projected = rows.read.all();
  const int64_t patches =
      encoder.modality() == Modality::Image
          ? in_proportion(tokens, usual.tiles * encoder.patches().patches_of(usual), usual.tokens)
          : 0;
  return UnitSizes::whole(tokens, projected / encoder.projector.merge,
                          in_proportion(projected, usual.features, usual.projected()), patches);
}

double pairs_of_unit(const ModelSpec& model, const UnitSpec& unit, const ModuleRows& rows) {
  const auto found = rows.pairs.find(model.window(unit));
  return found == rows.pairs.end() ? 0 : found->second;
}

std::vector<double> replica_flops(const Plan& plan, const StepSamples& samples,
                                  const StepPlan& step) {
  std::vector<double> replicas;
  for (const std::vector<MicrobatchPlan>& microbatches : step.replicas) {
    double& flops = replicas.emplace_back(0);
    for (const MicrobatchPlan& microbatch : microbatches)
      for (const int64_t id : microbatch.samples)
        flops += sample_cost(samples.index[static_cast<size_t>(id)], plan.flops_of_samples);
  }
  return replicas;
}

}  // namespace detail

bool detail::is_repeated(const Plan& plan, int world_rank) {
  return std::ranges::all_of(plan.mesh.modules, [&](const ModuleGrid& grid) {
    return !plan.mesh.has(world_rank, grid.module) ||
           plan.mesh.coordinate(world_rank, grid.module).tp > 0;
  });
}

int64_t RankTraffic::total() const {
  return std::accumulate(sent.begin(), sent.end(), int64_t{0},
                         [](int64_t sum, const auto& group) { return sum + group.second; });
}

const RankTraffic& StepFacts::most_sent() const {
  return *std::ranges::max_element(traffic, {}, &RankTraffic::total);
}

StepFacts facts_of(const Plan& plan, const StepSamples& samples) {
  StepFacts facts;
  facts.steps = samples.steps();
  for (const StepPlan& step : plan_steps(plan, samples)) {
    add_counts(facts, plan, step);
    add_work(facts, plan, samples, step);
    add_memory(facts, plan, samples, step);
  }
  for (double* sum :
       {&facts.samples, &facts.tokens, &facts.targets, &facts.items, &facts.microbatches,
        &facts.fill, &facts.model_flops, &facts.slowest_flops, &facts.idle_share})
    *sum /= static_cast<double>(facts.steps);
  for (const StageGroup& group : plan.pipeline.stage_groups)
    facts.traffic.push_back(
        {group.first_rank, traffic_of_samples(plan, samples, group.first_rank)});
  return facts;
}

}  // namespace zea
