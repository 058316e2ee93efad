// SPDX-License-Identifier: Apache-2.0
#include "make_pipeline.hpp"

#include <algorithm>
#include <cstdio>
#include <set>

#include "plan/mesh/mesh_shape.hpp"
#include "plan/mesh/module_sharding.hpp"
#include "zea/plan/model/stage_template.hpp"
#include "zea/plan/schedule/stage_split.hpp"

namespace zea::detail {
namespace {

PipelineSchedule schedule_of(const std::string& name) {
  for (const PipelineSchedule schedule :
       {PipelineSchedule::GPipe, PipelineSchedule::Interleaved, PipelineSchedule::ZeroBubble})
    if (name == schedule_name(schedule)) return schedule;
  return PipelineSchedule::OneFOneB;
}

/// What a rank owns of a parameter: masters, their copy in another compute type, and where it
/// trains gradients and both moments.
int64_t owned_bytes(const Plan& plan, const ParamSpec& spec) {
  const ModuleGrid& grid = plan.mesh.grid(spec.module);
  const Sharding sharding = make_sharding(plan.options.meshes[spec.module], plan.mesh, grid, true);
  const Precision& precision = plan.precision_of(spec.module);
  auto bytes = static_cast<int64_t>(element_bytes(precision.master)) * (spec.trainable ? 4 : 1);
  if (precision.param != precision.master)
    bytes += static_cast<int64_t>(element_bytes(precision.param));
  return num_elements(cut_of(spec, grid.tp).shape) * bytes / sharding.shards;
}

int64_t owned_bytes(const Plan& plan, const std::set<int>& params) {
  int64_t bytes = 0;
  for (int param : params) bytes += owned_bytes(plan, plan.model.params[param]);
  return bytes;
}

/// Of a full microbatch on one rank, were everything trained.
std::vector<UnitCost> plain_costs(Faults& faults, const Plan& plan, const std::string& profile) {
  const Options& options = plan.options;
  const int64_t rows = options.data.rows_per_microbatch;
  if (profile.empty()) return estimated_costs(plan.model, options.data.row_tokens * rows);
  std::vector<std::string> notes;
  const auto costs = measured_costs(
      plan.model, profile, options.mesh.profile,
      {options.data.row_tokens, rows, options.precision.preset, options.run.device}, notes);
  for (const std::string& note : notes) faults.note(note);
  return costs;
}

/// Of a full microbatch, on the ranks that share each unit.
std::vector<UnitCost> unit_costs(Faults& faults, const Plan& plan, const std::string& profile) {
  std::vector<UnitCost> costs = frozen_aware(plan.model, plain_costs(faults, plan, profile));
  for (size_t u = 0; u < costs.size(); ++u) {
    const int ranks = plan.mesh.grid(plan.model.units[u].module).stage_ranks();
    costs[u].forward /= ranks;
    costs[u].backward_input /= ranks;
    costs[u].backward_weight /= ranks;
    const std::vector<int>& params = plan.model.units[u].params;
    costs[u].bytes = owned_bytes(plan, {params.begin(), params.end()});
  }
  return costs;
}

void add_cost(UnitCost& sum, const UnitCost& cost) {
  sum.forward += cost.forward;
  sum.backward_input += cost.backward_input;
  sum.backward_weight += cost.backward_weight;
  sum.bytes += cost.bytes;
}

std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

class PipelineBuilder {
 public:
  PipelineBuilder(Faults& faults, const Plan& plan) : faults_(faults), plan_(plan) {}

  Pipeline build() {
    pipeline_.schedule = schedule_of(plan_.options.mesh.schedule);
    for (const ModuleGrid& grid : plan_.mesh.modules) add_stages(grid, add_places(grid));
    return finish();
  }

 private:
  struct Stage {
    int place;
    int number;  ///< in the order of its module
    std::vector<int> units;
  };

  /// The first of the module's places; those that are not there yet are added. Grids that begin at
  /// one rank share places.
  int add_places(const ModuleGrid& grid) {
    int first = static_cast<int>(pipeline_.places.size());
    for (int p = 0; p < first; ++p)
      if (pipeline_.places[p].first_rank == grid.first_rank) first = p;
    for (int stage = 0; stage < grid.pp; ++stage) {
      const bool is_new = first + stage == static_cast<int>(pipeline_.places.size());
      if (is_new)
        pipeline_.places.push_back({.name = {},
                                    .first_rank = grid.first_rank + stage * grid.stage_ranks(),
                                    .ranks = grid.stage_ranks()});
      std::string& name = pipeline_.places[first + stage].name;
      const bool joins_encoders = !is_new && grid.module != kDecoder;
      name = (joins_encoders ? "encoders" : grid.module) + ".pp" + std::to_string(stage);
    }
    return first;
  }

  void add_stages(const ModuleGrid& grid, int first_place) {
    const std::vector<int> units = units_of(grid.module);
    auto unit = units.begin();
    int number = 0;
    for (int count : counts(grid, units)) {
      add_units({first_place + number % grid.pp, number, {unit, unit + count}});
      unit += count;
      ++number;
    }
  }

  /// Stages of several modules with one number at one place are one.
  void add_units(Stage stage) {
    for (Stage& there : stages_)
      if (there.place == stage.place && there.number == stage.number) {
        there.units.insert(there.units.end(), stage.units.begin(), stage.units.end());
        return;
      }
    stages_.push_back(std::move(stage));
  }

  std::vector<int> units_of(const std::string& module) const {
    std::vector<int> units;
    for (size_t u = 0; u < plan_.model.units.size(); ++u)
      if (plan_.model.units[u].module == module) units.push_back(static_cast<int>(u));
    return units;
  }

  /// Units of each stage of a module.
  std::vector<int> counts(const ModuleGrid& grid, const std::vector<int>& units) {
    const ModuleMeshOptions& mesh = plan_.options.meshes[grid.module];
    std::vector<std::string> sentences;
    if (!mesh.stages.empty())
      return stages_of_template(plan_.model, grid.module, mesh.stages, sentences);
    std::vector<UnitCost> costs;
    for (int unit : units) costs.push_back(plan_.unit_costs[unit]);
    if (grid.module == kDecoder && plan_.options.mesh.placement == "shared")
      for (size_t u = 0; u < plan_.model.units.size(); ++u)
        if (plan_.model.units[u].module != kDecoder) add_cost(costs.front(), plan_.unit_costs[u]);
    const auto stages = static_cast<int>(grid.pp * mesh.virtual_stages);
    const auto limit = static_cast<int64_t>(plan_.options.mesh.memory_mib * (1 << 20));
    const std::vector<int> split = split_evenly(costs, stages, limit);
    if (split.empty())
      faults_.add("mesh." + grid.module + ": its units do not fit into " + std::to_string(stages) +
                  " stages of mesh.memory_mib = " + number_text(plan_.options.mesh.memory_mib) +
                  "; raise it, pp, tp, or the ranks that share a copy");
    return split;
  }

  Pipeline finish() {
    std::sort(stages_.begin(), stages_.end(),
              [](const Stage& a, const Stage& b) { return a.units.front() < b.units.front(); });
    pipeline_.stage_of_unit.assign(plan_.model.units.size(), -1);
    for (Stage& stage : stages_) {
      const auto number = static_cast<int>(pipeline_.stages.size());
      for (int unit : stage.units) pipeline_.stage_of_unit[unit] = number;
      pipeline_.places[stage.place].stages.push_back(number);
      pipeline_.stages.push_back({stage.place, std::move(stage.units)});
    }
    return std::move(pipeline_);
  }

  Faults& faults_;
  const Plan& plan_;
  Pipeline pipeline_;
  std::vector<Stage> stages_;
};

std::vector<RankLink> links_of(const Plan& plan) {
  std::set<std::pair<int, int>> pairs;
  for (const PipelineEdge& edge : edges_of(plan.pipeline, plan.model))
    pairs.insert({edge.from, edge.to});
  std::vector<RankLink> links;
  for (const auto& [from, to] : pairs) {
    const PipelinePlace &source = plan.pipeline.places[from], &target = plan.pipeline.places[to];
    links.push_back({link_name(source, target),
                     {source.first_rank, source.ranks},
                     {target.first_rank, target.ranks}});
  }
  return links;
}

/// Where units of one module that read the same parameters stand, where these are several stages.
void set_tied_stages(Plan& plan) {
  std::vector<std::set<int>> stages(plan.model.params.size());
  for (size_t u = 0; u < plan.model.units.size(); ++u)
    for (int param : plan.model.units[u].params)
      stages[param].insert(plan.stage_of_unit(static_cast<int>(u)));
  for (ModuleGrid& grid : plan.mesh.modules)
    for (size_t p = 0; p < stages.size(); ++p)
      if (stages[p].size() > 1 && plan.model.params[p].module == grid.module)
        grid.tied_stages = {stages[p].begin(), stages[p].end()};
}

/// A template, several modules on the same ranks, or no stages at all: whatever stands on a rank
/// must keep the limit.
void check_memory(Faults& faults, const Plan& plan) {
  const double limit_mib = plan.options.mesh.memory_mib;
  for (const PipelinePlace& place : plan.pipeline.places) {
    std::set<int> params;
    for (int stage : place.stages)
      for (int unit : plan.pipeline.stages[stage].units)
        params.insert(plan.model.units[unit].params.begin(), plan.model.units[unit].params.end());
    const double mib = static_cast<double>(owned_bytes(plan, params)) / (1 << 20);
    if (limit_mib == 0 || mib <= limit_mib) continue;
    const std::string where = plan.pipeline.places.size() > 1 ? " of " + place.name : "";
    faults.add("mesh.memory_mib = " + number_text(limit_mib) +
               ", but the parameters, gradients and optimizer state of a rank" + where + " are " +
               number_text(mib) + " MiB; raise it, pp, tp, or the ranks that share a copy");
  }
}

}  // namespace

void make_pipeline(Faults& faults, Plan& plan, const std::string& profile) {
  plan.has_measured_costs = !profile.empty();
  plan.unit_costs = unit_costs(faults, plan, profile);
  if (!is_pipelined(plan.options)) {
    plan.pipeline = one_place(plan.model, plan.mesh.ranks_per_replica());
    check_memory(faults, plan);
    return;
  }
  plan.pipeline = PipelineBuilder(faults, plan).build();
  faults.throw_if_any();
  check_memory(faults, plan);
  plan.mesh.links = links_of(plan);
  set_tied_stages(plan);
}

}  // namespace zea::detail
