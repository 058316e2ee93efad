// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/action.hpp"

#include <algorithm>
#include <optional>

namespace zea {
namespace {

/// One Forward or Backward that some ranks of the job make.
struct Compute {
  ActionKind kind;
  int unit;
  int microbatch;
};

class Scheduler {
 public:
  explicit Scheduler(const ScheduleInput& input)
      : input_(input),
        unit_groups_(groups_of_units(input.model, input.groups)),
        num_units_(static_cast<int>(input.model.units.size())) {
    for (const auto& microbatches : input.step.replicas) {
      has_backward_.emplace_back();
      for (const MicrobatchPlan& microbatch : microbatches)
        has_backward_.back().push_back(units_with_backward(input.model, microbatch));
    }
    for (int microbatch = 0; microbatch < input.step.num_microbatches(); ++microbatch)
      append_walk(microbatch);
    find_last_backwards();
  }

  std::vector<Action> actions() {
    if (!walk_.empty()) unshard(0);
    for (size_t i = 0; i < walk_.size(); ++i) {
      if (i + 1 < walk_.size()) unshard(i + 1);
      const Compute& compute = walk_[i];
      if (runs_here(compute))
        actions_.push_back({compute.kind, compute.unit, -1, compute.microbatch});
      if (compute.kind == ActionKind::Backward) reduce(i);
      reshard(i);
    }
    return std::move(actions_);
  }

  bool has_gradient(int group) const { return last_backward_[group].has_value(); }

 private:
  void append_walk(int microbatch) {
    for (int unit = 0; unit < num_units_; ++unit)
      walk_.push_back({ActionKind::Forward, unit, microbatch});
    if (input_.forward_only) return;
    for (int unit = num_units_; unit-- > 0;)
      walk_.push_back({ActionKind::Backward, unit, microbatch});
  }

  /// The last backward of the job that touches each trainable buffer, if any does.
  void find_last_backwards() {
    last_backward_.resize(input_.groups.size());
    for (size_t i = 0; i < walk_.size(); ++i)
      if (walk_[i].kind == ActionKind::Backward)
        for (int group : unit_groups_[walk_[i].unit])
          if (input_.groups[group].trainable && runs_on(walk_[i], input_.all_peers[group]))
            last_backward_[group] = i;
  }

  bool runs_on(const Compute& compute, const std::vector<int>& replicas) const {
    return std::any_of(replicas.begin(), replicas.end(), [&](int replica) {
      return compute.kind == ActionKind::Backward
                 ? has_backward_[replica][compute.microbatch][compute.unit]
                 : unit_runs(input_.model.units[compute.unit],
                             input_.step.replicas[replica][compute.microbatch]);
    });
  }
  bool runs_here(const Compute& compute) const { return runs_on(compute, {input_.replica}); }

  bool uses(const Compute& compute, int group) const {
    const auto& groups = unit_groups_[compute.unit];
    return std::find(groups.begin(), groups.end(), group) != groups.end();
  }

  /// Whether the shard group must have `group` gathered for walk_[i].
  bool needs(size_t i, int group) const {
    return i < walk_.size() && input_.shardings[group].gathered() && uses(walk_[i], group) &&
           runs_on(walk_[i], input_.shard_peers[group]);
  }

  void unshard(size_t i) {
    for (int group : unit_groups_[walk_[i].unit])
      if (needs(i, group) && !(i > 0 && needs(i - 1, group)))
        actions_.push_back({ActionKind::Unshard, -1, group, walk_[i].microbatch});
  }

  void reshard(size_t i) {
    for (int group : unit_groups_[walk_[i].unit])
      if (needs(i, group) && !needs(i + 1, group))
        actions_.push_back({ActionKind::Reshard, -1, group, walk_[i].microbatch});
  }

  void reduce(size_t i) {
    for (int group : unit_groups_[walk_[i].unit]) {
      if (!input_.groups[group].trainable) continue;
      const Sharding& sharding = input_.shardings[group];
      if (sharding.gathered() && runs_on(walk_[i], input_.shard_peers[group]))
        actions_.push_back({ActionKind::ReduceShard, -1, group, walk_[i].microbatch});
      // Once per step, where the last rank of the job that has work makes its backward.
      if (sharding.replicas > 1 && last_backward_[group] == i)
        actions_.push_back({ActionKind::ReduceReplicas, -1, group, walk_[i].microbatch});
    }
  }

  const ScheduleInput& input_;
  std::vector<std::vector<int>> unit_groups_;
  int num_units_;
  std::vector<std::vector<std::vector<bool>>> has_backward_;  ///< [replica][microbatch][unit]
  std::vector<Compute> walk_;
  std::vector<std::optional<size_t>> last_backward_;  ///< of each group, an index of walk_
  std::vector<Action> actions_;
};

}  // namespace

bool unit_runs(const UnitSpec& unit, const MicrobatchPlan& microbatch) {
  return unit.module == "vision" ? microbatch.items > 0 : !microbatch.empty();
}

std::vector<bool> units_with_backward(const ModelSpec& model, const MicrobatchPlan& microbatch) {
  std::vector<bool> has(model.units.size(), false);
  for (size_t u = 0; u < has.size(); ++u) {
    const UnitSpec& unit = model.units[u];
    if (!unit_runs(unit, microbatch)) continue;
    has[u] = std::any_of(unit.params.begin(), unit.params.end(),
                         [&](int param) { return model.params[param].trainable; }) ||
             std::any_of(unit.inputs.begin(), unit.inputs.end(),
                         [&](const UnitInput& input) { return has[input.unit]; });
  }
  return has;
}

std::vector<Action> make_schedule(const ScheduleInput& input) {
  return Scheduler(input).actions();
}

std::vector<bool> groups_with_gradient(const ScheduleInput& input) {
  const Scheduler scheduler(input);
  std::vector<bool> has(input.groups.size());
  for (size_t group = 0; group < has.size(); ++group)
    has[group] = scheduler.has_gradient(static_cast<int>(group));
  return has;
}

std::string describe(const Action& action, const ModelSpec& model,
                     const std::vector<FlatGroup>& groups) {
  constexpr const char* kNames[] = {"unshard",  "reshard",      "forward",
                                    "backward", "reduce_shard", "reduce_replicas"};
  const std::string& subject =
      action.unit >= 0 ? model.units[action.unit].name : groups[action.group].name;
  return std::string(kNames[static_cast<int>(action.kind)]) + " " + subject + " microbatch " +
         std::to_string(action.microbatch);
}

}  // namespace zea
