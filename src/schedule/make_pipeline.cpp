// SPDX-License-Identifier: Apache-2.0
#include "schedule/plan_parts.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "core/text.hpp"
#include "layout/flat_layout.hpp"
#include "layout/mesh_shape.hpp"
#include "layout/module_sharding.hpp"
#include "spec/param_shard.hpp"
#include "spec/stage_template.hpp"

namespace zea::detail {
namespace {

/// The bytes that a rank owns of each parameter where it computes; of experts that ranks share, its
/// share.
std::vector<int64_t> bytes_of_params(const PipelineParts& parts) {
  const ModuleGrid& decoder = parts.mesh.grid(kDecoder);
  const int ep = decoder.ep();
  const std::set<int> experts = ep > 1 ? parts.model.expert_params() : std::set<int>();
  std::map<std::pair<std::string, bool>, Sharding> shardings;
  for (const ModuleGrid& grid : parts.mesh.modules)
    for (const bool is_over_ep : {false, true})
      if (!is_over_ep || (ep > 1 && grid.module == kDecoder))
        shardings[{grid.module, is_over_ep}] =
            make_sharding(parts.options.meshes[grid.module], parts.mesh, grid, true, is_over_ep);
  std::vector<int64_t> all;
  for (size_t param = 0; param < parts.model.params.size(); ++param) {
    const ParamSpec& spec = parts.model.params[param];
    const bool is_over_ep = experts.contains(static_cast<int>(param));
    const Sharding& sharding = shardings.at({spec.module, is_over_ep});
    int64_t& bytes = all.emplace_back(0);
    if (sharding.offloads) continue;
    const Precision& precision = parts.precisions.at(spec.module);
    const ParamShard cut =
        param_shard_of(spec, is_over_ep ? decoder.expert_tp() : parts.mesh.grid(spec.module).tp);
    const int64_t elements = num_elements(cut.shape) / (is_over_ep ? ep : 1);
    bytes = elements * owned_bytes(precision, spec.trainable, spec.used && !spec.is_state).total();
    if (spec.trainable)
      bytes += parts.optimizer.state_bytes(
          precision.master, elements, parts.optimizer.has_blocks() ? state_block(spec, cut) : 0);
    bytes /= sharding.shards;
  }
  return all;
}

/// Returns the bytes of units; a parameter that several of them read is there once.
int64_t bytes_of(const ModelSpec& model, const std::vector<int64_t>& bytes_of_params,
                 const std::vector<int>& units) {
  std::set<int> params;
  for (int unit : units)
    params.insert(model.units[unit].params.begin(), model.units[unit].params.end());
  int64_t bytes = 0;
  for (int param : params) bytes += bytes_of_params[param];
  return bytes;
}

/// Returns the costs of a full microbatch on one rank, were everything trained.
std::vector<UnitCost> plain_costs(Faults& faults, const PipelineParts& parts) {
  const Options& options = parts.options;
  const int64_t rows = options.data.rows_per_microbatch;
  if (parts.profile.empty()) return estimated_costs(parts.model, options.data.row_tokens, rows);
  std::vector<std::string> notes;
  std::vector<UnitCost> costs = measured_costs(
      parts.model, parts.profile, options.mesh.profile,
      {options.data.row_tokens, rows, options.precision.preset.name(), options.run.device.name()},
      notes);
  for (const std::string& note : notes) faults.note(note);
  return costs;
}

/// Returns the costs of a full microbatch, on the ranks that share each unit.
std::vector<UnitCost> unit_costs(Faults& faults, const PipelineParts& parts,
                                 const std::vector<int64_t>& param_bytes) {
  std::vector<UnitCost> costs = frozen_aware(parts.model, plain_costs(faults, parts));
  for (size_t u = 0; u < costs.size(); ++u) {
    const int ranks = parts.mesh.grid(parts.model.units[u].module).stage_ranks();
    costs[u].forward /= ranks;
    costs[u].backward_input /= ranks;
    costs[u].backward_weight /= ranks;
    costs[u].bytes = bytes_of(parts.model, param_bytes, {static_cast<int>(u)});
  }
  return costs;
}

void add_cost(UnitCost& sum, const UnitCost& cost) {
  sum.forward += cost.forward;
  sum.backward_input += cost.backward_input;
  sum.backward_weight += cost.backward_weight;
  sum.bytes += cost.bytes;
}

class PipelineBuilder {
 public:
  PipelineBuilder(Faults& faults, const PipelineParts& parts, const std::vector<UnitCost>& costs)
      : faults_(faults),
        parts_(parts),
        costs_(costs),
        in_step_(without_cached(parts.model, costs)) {}

  Pipeline build() {
    pipeline_.schedule = parts_.options.mesh.schedule;
    for (const ModuleGrid& grid : parts_.mesh.modules) add_stages(grid, add_groups(grid));
    return finish();
  }

 private:
  struct Stage {
    int group;
    int number;  ///< in the order of its module
    std::vector<int> units;
  };

  /// The first of the module's stage groups; those that are not there yet are added. Grids that
  /// begin at one rank share stage groups.
  int add_groups(const ModuleGrid& grid) {
    int first = static_cast<int>(pipeline_.stage_groups.size());
    for (int p = 0; p < first; ++p)
      if (pipeline_.stage_groups[p].first_rank == grid.first_rank) first = p;
    for (int stage = 0; stage < grid.pp; ++stage) {
      const bool is_new = first + stage == static_cast<int>(pipeline_.stage_groups.size());
      if (is_new)
        pipeline_.stage_groups.push_back(
            {.name = {},
             .first_rank = grid.first_rank + stage * grid.stage_ranks(),
             .ranks = grid.stage_ranks()});
      std::string& name = pipeline_.stage_groups[first + stage].name;
      const bool joins_encoders = !is_new && grid.module != kDecoder;
      name = (joins_encoders ? "encoders" : grid.module) + ".pp" + std::to_string(stage);
    }
    return first;
  }

  void add_stages(const ModuleGrid& grid, int first_group) {
    const std::vector<int> units = units_of(grid.module);
    auto unit = units.begin();
    int number = 0;
    for (int count : counts(grid, units)) {
      add_units({first_group + number % grid.pp, number, {unit, unit + count}});
      unit += count;
      ++number;
    }
  }

  /// Stages of several modules with one number at one stage group are one.
  void add_units(Stage stage) {
    for (Stage& there : stages_)
      if (there.group == stage.group && there.number == stage.number) {
        there.units.insert(there.units.end(), stage.units.begin(), stage.units.end());
        return;
      }
    stages_.push_back(std::move(stage));
  }

  std::vector<int> units_of(const std::string& module) const {
    std::vector<int> units;
    for (size_t u = 0; u < parts_.model.units.size(); ++u)
      if (parts_.model.units[u].module == module) units.push_back(static_cast<int>(u));
    return units;
  }

  /// Units of a module from the first to the last that makes or takes features, by index: they
  /// stand in one stage, which alone exchanges them with other modules.
  struct FeatureUnits {
    int first = -1, last = -1;
  };
  FeatureUnits feature_units(const std::vector<int>& units) const {
    const auto makes = [&](int unit) { return parts_.model.makes_features(unit); };
    FeatureUnits found;
    for (size_t i = 0; i < units.size(); ++i) {
      const auto takes = [&](const UnitInput& input) { return makes(input.unit); };
      if (!makes(units[i]) && !std::ranges::any_of(parts_.model.units[units[i]].inputs, takes))
        continue;
      found.last = static_cast<int>(i);
      if (found.first < 0) found.first = found.last;
    }
    return found;
  }

  std::string names_of(const std::vector<int>& units, const FeatureUnits& features) const {
    return unit_names(parts_.model,
                      {units.begin() + features.first, units.begin() + features.last + 1});
  }

  void check_feature_units(const ModuleGrid& grid, const std::vector<int>& units,
                           const std::vector<int>& counts) {
    const FeatureUnits features = feature_units(units);
    int begin = 0;
    for (int count : counts) {
      const int end = begin + count;
      if (begin <= features.first && features.first < end && features.last >= end)
        faults_.add("mesh." + grid.module + ".stages parts " + names_of(units, features) +
                    ", which make or take features of encoders; they stand in one stage: put them "
                    "into one");
      begin = end;
    }
  }

  /// More stages than there are units, of which those with features count as one.
  void add_too_many(const ModuleGrid& grid, int stages, int64_t most, const std::vector<int>& units,
                    const FeatureUnits& features) {
    const int64_t virtual_stages = parts_.options.meshes[grid.module].virtual_stages;
    faults_.add("mesh." + grid.module + ".pp = " + std::to_string(grid.pp) +
                " with virtual_stages = " + std::to_string(virtual_stages) + " asks for " +
                std::to_string(stages) + " stages, but " + names_of(units, features) +
                " stand in one, as they make or take features of encoders, which leaves " +
                std::to_string(most) + "; allowed: up to " + std::to_string(most / virtual_stages));
  }

  /// Units of each stage of a module.
  std::vector<int> counts(const ModuleGrid& grid, const std::vector<int>& units) {
    const ModuleMeshOptions& mesh = parts_.options.meshes[grid.module];
    std::vector<std::string> sentences;
    if (!mesh.stages.empty()) {
      std::vector<int> counts =
          stages_of_template(parts_.model, grid.module, mesh.stages, sentences);
      check_feature_units(grid, units, counts);
      return counts;
    }
    std::vector<UnitCost> costs;
    for (int unit : units) costs.push_back(costs_[unit]);
    if (grid.module == kDecoder && parts_.options.mesh.placement == ModulePlacement::Shared)
      for (size_t u = 0; u < parts_.model.units.size(); ++u)
        if (parts_.model.units[u].module != kDecoder) add_cost(costs.front(), in_step_[u]);
    const auto stages = static_cast<int>(grid.pp * mesh.virtual_stages);
    // One stage is all there is: check_memory() sees what its units share.
    const auto limit =
        stages > 1 ? static_cast<int64_t>(parts_.options.mesh.memory_mib * (1 << 20)) : 0;
    const FeatureUnits features = feature_units(units);
    const int joined = features.last - features.first;  // with the first of them
    for (int i = 0; i < joined; ++i) {
      add_cost(costs[features.first], costs[features.first + 1]);
      costs.erase(costs.begin() + features.first + 1);
    }
    if (stages > std::ssize(costs)) {
      add_too_many(grid, stages, std::ssize(costs), units, features);
      return {};
    }
    std::vector<int> split = split_evenly(costs, stages, limit);
    for (int stage = 0, begin = 0; stage < std::ssize(split); begin += split[stage++])
      if (begin <= features.first && features.first < begin + split[stage]) {
        split[stage] += joined;
        break;
      }
    if (split.empty())
      faults_.add(
          "mesh." + grid.module + ": its units do not fit into " + std::to_string(stages) +
          " stages of mesh.memory_mib = " + formatted("%g", parts_.options.mesh.memory_mib) +
          "; raise it, pp, tp, or the ranks that share a copy");
    return split;
  }

  Pipeline finish() {
    std::sort(stages_.begin(), stages_.end(),
              [](const Stage& a, const Stage& b) { return a.units.front() < b.units.front(); });
    pipeline_.stage_of_unit.assign(parts_.model.units.size(), -1);
    for (Stage& stage : stages_) {
      const auto number = static_cast<int>(pipeline_.stages.size());
      for (int unit : stage.units) pipeline_.stage_of_unit[unit] = number;
      pipeline_.stage_groups[stage.group].stages.push_back(number);
      pipeline_.stages.push_back({stage.group, std::move(stage.units)});
    }
    return std::move(pipeline_);
  }

  Faults& faults_;
  const PipelineParts& parts_;
  const std::vector<UnitCost>& costs_;   ///< of each unit where it runs: its module is cut by these
  const std::vector<UnitCost> in_step_;  ///< of each unit in a step that trains
  Pipeline pipeline_;
  std::vector<Stage> stages_;
};

std::vector<RankLink> links_of(const Pipeline& pipeline, const ModelSpec& model) {
  std::map<std::pair<int, int>, bool> pairs;  // whether features are among what travels
  for (const PipelineEdge& edge : edges_of(pipeline, model))
    pairs[{edge.from, edge.to}] |= model.makes_features(edge.unit);
  std::vector<RankLink> links;
  for (const auto& [pair, carries_features] : pairs) {
    const StageGroup &from = pipeline.stage_groups[pair.first],
                     &to = pipeline.stage_groups[pair.second];
    links.push_back({link_name(from, to),
                     {from.first_rank, from.ranks},
                     {to.first_rank, to.ranks},
                     carries_features});
  }
  return links;
}

/// Returns the sets of a module's stages whose units share parameters (tied weights).
std::vector<std::vector<int>> tied_stages_of(const Pipeline& pipeline, const ModelSpec& model,
                                             const ModuleGrid& grid) {
  std::vector<std::set<int>> stages(model.params.size());
  for (size_t u = 0; u < model.units.size(); ++u)
    for (int param : model.units[u].params)
      if (model.units[u].module == grid.module && model.params[param].module == grid.module)
        stages[param].insert(pipeline.stage_in_module(static_cast<int>(u), grid));
  std::set<std::vector<int>> tied;
  for (const std::set<int>& of_param : stages)
    if (of_param.size() > 1) tied.insert({of_param.begin(), of_param.end()});
  return {tied.begin(), tied.end()};
}

/// A template, several modules on the same ranks, or no stages at all: whatever stands on a rank
/// must keep the limit.
void check_memory(Faults& faults, const PipelineParts& parts, const Pipeline& pipeline,
                  const std::vector<int64_t>& param_bytes) {
  const double limit_mib = parts.options.mesh.memory_mib;
  if (limit_mib == 0) return;
  for (const StageGroup& group : pipeline.stage_groups) {
    std::vector<int> units;
    for (int stage : group.stages)
      std::ranges::copy(pipeline.stages[stage].units, std::back_inserter(units));
    const double mib = static_cast<double>(bytes_of(parts.model, param_bytes, units)) / (1 << 20);
    if (mib <= limit_mib) continue;
    const std::string where = pipeline.stage_groups.size() > 1 ? " of " + group.name : "";
    faults.add("mesh.memory_mib = " + formatted("%g", limit_mib) +
               ", but the parameters, gradients and optimizer state of a rank" + where + " are " +
               formatted("%g", mib) + " MiB; raise it, pp, tp, or the ranks that share a copy");
  }
}

}  // namespace

PlacedPipeline make_pipeline(Faults& faults, const PipelineParts& parts) {
  const std::vector<int64_t> param_bytes = bytes_of_params(parts);
  const std::vector<UnitCost> costs = unit_costs(faults, parts, param_bytes);
  const bool is_pipelined_run = is_pipelined(parts.options);
  Pipeline pipeline = is_pipelined_run ? PipelineBuilder(faults, parts, costs).build()
                                       : one_group(parts.model, parts.mesh.ranks_per_replica());
  faults.throw_if_any();
  for (PipelineStage& stage : pipeline.stages)
    stage.bytes = bytes_of(parts.model, param_bytes, stage.units);
  check_memory(faults, parts, pipeline, param_bytes);
  faults.throw_if_any();
  MeshShape mesh = parts.mesh;
  if (is_pipelined_run) {
    mesh.links = links_of(pipeline, parts.model);
    for (ModuleGrid& grid : mesh.modules)
      grid.tied_stages = tied_stages_of(pipeline, parts.model, grid);
  }
  return {without_cached(parts.model, costs), pipeline, mesh};
}

}  // namespace zea::detail

namespace zea {

// The cut that makes the costliest run of units cheapest, by dynamic programming from the last unit
// to the first; then, of the cuts with no costlier run, the one with the least sum of squares, in
// the same way: several stages of one stage group come out alike.

namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;  ///< of sums that are equal

class StageSplit {
 public:
  StageSplit(const std::vector<UnitCost>& costs, int64_t max_bytes)
      : units_(static_cast<int>(costs.size())), max_bytes_(max_bytes), cost_{0}, bytes_{0} {
    for (const UnitCost& cost : costs) {
      cost_.push_back(cost_.back() + cost.total());
      bytes_.push_back(bytes_.back() + cost.bytes);
    }
  }

  std::vector<int> cut(int stages) {
    find_best(stages, [](double run, double rest) { return std::max(run, rest); });
    if (best_[stages][0] == kImpossible) return {};
    limit_ = best_[stages][0] * (1 + kRounding);
    const auto squares = [](double run, double rest) { return run * run + rest; };
    find_best(stages, squares);
    std::vector<int> lengths;
    for (int first = 0, runs = stages; runs > 0; --runs) {
      int end = first + 1;
      while (score(first, end, runs, squares) > best_[runs][first]) ++end;
      lengths.push_back(end - first);
      first = end;
    }
    return lengths;
  }

 private:
  /// best_[runs][first]: the least score of so many runs that begin with unit `first`.
  template <class Combine>
  void find_best(int stages, const Combine& combine) {
    best_.assign(stages + 1, std::vector<double>(units_ + 1, kImpossible));
    best_[0][units_] = 0;
    for (int runs = 1; runs <= stages; ++runs)
      for (int first = units_ - runs; first >= 0; --first)
        for (int end = first + 1; end <= units_ - runs + 1; ++end)
          best_[runs][first] = std::min(best_[runs][first], score(first, end, runs, combine));
  }

  /// The `runs` runs of which the first is [first, end).
  template <class Combine>
  double score(int first, int end, int runs, const Combine& combine) const {
    const double cost = cost_[end] - cost_[first];
    if (max_bytes_ > 0 && bytes_[end] - bytes_[first] > max_bytes_) return kImpossible;
    return cost > limit_ ? kImpossible : combine(cost, best_[runs - 1][end]);
  }

  int units_;
  int64_t max_bytes_;
  double limit_ = kImpossible;  ///< that no run's cost exceeds
  std::vector<double> cost_;    ///< of the units before each
  std::vector<int64_t> bytes_;
  std::vector<std::vector<double>> best_;
};

}  // namespace

std::vector<int> split_evenly(const std::vector<UnitCost>& costs, int stages, int64_t max_bytes) {
  if (stages < 1 || stages > static_cast<int>(costs.size())) return {};
  return StageSplit(costs, max_bytes).cut(stages);
}

}  // namespace zea
