// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "estimate/describe.hpp"
#include "schedule/simulate.hpp"
#include "spec/stage_template.hpp"

namespace zea {
namespace {

constexpr int kDrawnMicrobatches = 32;  ///< at most

/// The unit in which costs are printed.
struct CostUnit {
  const char* name;
  double size;
};

CostUnit cost_unit(const Plan& plan) {
  if (!plan.has_measured_costs) return {"million multiplications", 1e6};
  return {"milliseconds", 1e-3};
}

UnitCost cost_of(const Plan& plan, const PipelineStage& stage) {
  UnitCost sum{.bytes = stage.bytes};
  for (int unit : stage.units) {
    const UnitCost& cost = plan.unit_costs[unit];
    sum.forward += cost.forward;
    sum.backward_input += cost.backward_input;
    sum.backward_weight += cost.backward_weight;
  }
  return sum;
}

size_t longest_name(const Pipeline& pipeline) {
  size_t longest = 5;
  for (const StageGroup& group : pipeline.stage_groups)
    longest = std::max(longest, group.name.size());
  return longest;
}

std::string stage_table(const Plan& plan) {
  const Pipeline& pipeline = plan.pipeline;
  const CostUnit unit = cost_unit(plan);
  const int width = static_cast<int>(longest_name(pipeline));
  std::string text = formatted("  %-*s  %-9s  %5s  %10s  %10s  %10s  %12s  units\n", width, "group",
                               "ranks", "stage", "forward", "inputs", "weights", "MiB per rank");
  for (const StageGroup& group : pipeline.stage_groups)
    for (int stage : group.stages) {
      const UnitCost cost = cost_of(plan, pipeline.stages[stage]);
      const std::string ranks =
          std::to_string(group.first_rank) +
          (group.ranks > 1 ? ".." + std::to_string(group.first_rank + group.ranks - 1) : "");
      text += formatted("  %-*s  %-9s  %5d  %10.4g  %10.4g  %10.4g  %12.2f  ", width,
                        group.name.c_str(), ranks.c_str(), stage, cost.forward / unit.size,
                        cost.backward_input / unit.size, cost.backward_weight / unit.size,
                        static_cast<double>(cost.bytes) / (1 << 20)) +
              unit_names(plan.model, pipeline.stages[stage].units) + "\n";
    }
  return text;
}

/// How far the busiest stage group is from the mean of all.
std::string balance(const Plan& plan) {
  std::vector<double> work;
  for (const StageGroup& group : plan.pipeline.stage_groups) {
    work.push_back(0);
    for (int stage : group.stages)
      work.back() += cost_of(plan, plan.pipeline.stages[stage]).total();
  }
  const double sum = std::accumulate(work.begin(), work.end(), 0.0);
  const auto busiest = std::max_element(work.begin(), work.end());
  if (sum <= 0) return "";
  return "  the busiest group is " + plan.pipeline.stage_groups[busiest - work.begin()].name +
         formatted(", with %.2f times the mean of all\n",
                   *busiest * static_cast<double>(work.size()) / sum);
}

Simulation simulated(const Plan& plan, int microbatches) {
  return simulate(plan.pipeline, plan.model, plan.unit_costs, microbatches);
}

std::string bubbles(const Plan& plan) {
  const int groups = static_cast<int>(plan.pipeline.stage_groups.size());
  std::string text = "  waiting, of the time of all groups:";
  for (int microbatches : {groups, 2 * groups, 4 * groups})
    text += formatted("%s %.1f %% with %d", microbatches > groups ? "," : "",
                      100 * simulated(plan, microbatches).bubble(), microbatches);
  return text + " microbatches in a step (messages take no time here)\n";
}

/// How many microbatches the step that is drawn has.
int drawn_microbatches(const Plan& plan) {
  return std::min(2 * static_cast<int>(plan.pipeline.stage_groups.size()), kDrawnMicrobatches);
}

std::string picture(const Plan& plan) {
  const int microbatches = drawn_microbatches(plan);
  const Simulation simulation = simulated(plan, microbatches);
  std::string text = formatted(
      "  a step of %d microbatches, time to the right (F forward, B backward", microbatches);
  if (plan.pipeline.schedule == PipelineSchedule::ZeroBubble)
    text += ", W gradients of weights that were put off";
  text += "; its microbatch";
  const auto has_several = [](const StageGroup& group) { return group.stages.size() > 1; };
  if (std::any_of(plan.pipeline.stage_groups.begin(), plan.pipeline.stage_groups.end(),
                  has_several))
    text += ", a, b, ... of the stages of a group";
  text += ")\n";
  std::string rows = draw(simulation, plan.pipeline);
  for (size_t begin = 0; begin < rows.size(); begin = rows.find('\n', begin) + 1)
    text += "  " + rows.substr(begin, rows.find('\n', begin) + 1 - begin);
  return text;
}

}  // namespace

std::string describe_pipeline(const Plan& plan) {
  if (plan.pipeline.is_one_group()) return "";
  const std::string source =
      plan.has_measured_costs ? "measured: " + plan.options.mesh.profile : "estimated from shapes";
  return "pipeline " + plan.options.mesh.schedule + ": " +
         std::to_string(plan.pipeline.stage_groups.size()) +
         " groups in a replica; costs of a full " + "microbatch in " + cost_unit(plan).name + " (" +
         source + ")\n" + stage_table(plan) + balance(plan) + bubbles(plan) + picture(plan);
}

std::string list_passes(const Plan& plan) {
  if (plan.pipeline.is_one_group()) return "";
  constexpr const char* kLetters[] = {"F", "B", "I", "W"};
  const Simulation simulation = simulated(plan, drawn_microbatches(plan));
  const double percent = simulation.makespan > 0 ? 100 / simulation.makespan : 0;
  std::string text =
      "passes of that step, for postprocess/plot_schedule.py (what:stage:microbatch:begin:end, in "
      "percent of the step)\n";
  for (size_t p = 0; p < simulation.groups.size(); ++p) {
    text += "  passes " + plan.pipeline.stage_groups[p].name;
    for (const TimedPass& timed : simulation.groups[p])
      if (timed.end > timed.begin)
        text += formatted(" %s:%d:%d:%.5g:%.5g", kLetters[static_cast<int>(timed.pass.kind)],
                          timed.pass.stage, timed.pass.microbatch, percent * timed.begin,
                          percent * timed.end);
    text += "\n";
  }
  return text;
}

}  // namespace zea
