// SPDX-License-Identifier: Apache-2.0
#include "schedule/schedule_trace.hpp"

#include <algorithm>
#include <set>

#include "core/error.hpp"
#include "layout/item_row.hpp"

namespace zea {
namespace detail {

namespace {

ActionKind kind_of(PassKind pass) {
  switch (pass) {
    case PassKind::Forward:
      return ActionKind::Forward;
    case PassKind::Backward:
      return ActionKind::Backward;
    case PassKind::BackwardInput:
      return ActionKind::BackwardInput;
    case PassKind::BackwardWeight:
      return ActionKind::BackwardWeight;
  }
  throw InternalError("unknown pass");
}

bool is_backward(ActionKind kind) {
  return kind != ActionKind::Forward;
}

/// The units that have their backward in every microbatch in which they run.
std::vector<bool> joint_backwards(const ScheduleInput& input) {
  if (!input.shares_experts) return std::vector<bool>(input.model.units.size(), false);
  std::vector<bool> joint = input.model.units_with_gradient();
  for (size_t u = 0; u < joint.size(); ++u)
    joint[u] = joint[u] && has_joint_backward(input.model.units[u]);
  return joint;
}

}  // namespace

ScheduleTrace::ScheduleTrace(const ScheduleInput& input)
    : input_(input),
      joint_(joint_backwards(input)),
      computes_of_unit_(input.model.units.size()),
      readers_(input.model.units.size()),
      received_(input.model.units.size()) {
  std::vector<MicrobatchKinds> of_replica;
  for (const MicrobatchPlan& microbatch : input.microbatches)
    of_replica.push_back({microbatch.kind()});
  const std::vector<MicrobatchKinds>* kinds[] = {&of_replica, &input.in_shard_group, &input.in_job};
  // Most microbatches are of the kinds of the one before.
  for (size_t peers = 0; peers < work_.size(); ++peers)
    for (size_t m = 0; m < of_replica.size(); ++m) {
      const std::vector<MicrobatchKinds>& all = *kinds[peers];
      const bool is_alike = m > 0 && all[m] == all[m - 1];
      work_[peers].push_back(is_alike ? Work(work_[peers].back()) : work_of(all[m]));
    }
  for (size_t u = 0; u < readers_.size(); ++u)
    for (const UnitInput& source : input.model.units[u].inputs)
      readers_[source.unit].push_back(static_cast<int>(u));
  find_received_units();
  for (const Pass& pass :
       passes_of_group(input.pipeline, input.model, input.group,
                       static_cast<int>(input.microbatches.size()), input.kind != StepKind::Train))
    add_pass(pass);
  for (const FlatBuffer& buffer : input.buffers) {
    std::vector<size_t>& uses = uses_of_buffer_.emplace_back();
    for (int unit : buffer.units)
      uses.insert(uses.end(), computes_of_unit_[unit].begin(), computes_of_unit_[unit].end());
    std::sort(uses.begin(), uses.end());
  }
}

/// The smallest set that has all ranks along these axes.
Peers ScheduleTrace::peers_along(std::initializer_list<const std::vector<Axis>*> sets) {
  const auto have = [&](Axis axis) {
    return std::ranges::any_of(
        sets, [&](const std::vector<Axis>* axes) { return std::ranges::count(*axes, axis) > 0; });
  };
  if (have(Axis::DpReplicate)) return Peers::Job;
  return have(Axis::DpShard) || have(Axis::ExpertDpShard) ? Peers::ShardGroup : Peers::Replica;
}

/// Returns the work of any of them.
ScheduleTrace::Work ScheduleTrace::work_of(const MicrobatchKinds& kinds) const {
  const std::vector<UnitSpec>& units = input_.model.units;
  Work work{std::vector<bool>(units.size()), std::vector<bool>(units.size())};
  for (const MicrobatchKind& kind : kinds) {
    const auto runs = [&](const UnitSpec& unit) { return unit_runs(unit, kind); };
    const std::vector<bool> backward = input_.model.units_with_gradient(runs);
    for (size_t u = 0; u < units.size(); ++u) {
      const bool joins = joint_[u] && runs(units[u]);
      work.forward[u] = work.forward[u] || (takes_part(static_cast<int>(u)) && runs(units[u]));
      work.backward[u] = work.backward[u] || backward[u] || joins;
    }
  }
  return work;
}

bool ScheduleTrace::takes_part(int unit) const {
  if (input_.model.units[unit].is_mtp) return input_.kind == StepKind::Train;
  return input_.kind == StepKind::Evaluate ||
         input_.model.is_cached(unit) == (input_.kind == StepKind::Encode);
}

void ScheduleTrace::add_pass(const Pass& pass) {
  const ActionKind kind = kind_of(pass.kind);
  std::vector<int> units = input_.pipeline.stages[pass.stage].units;
  if (is_backward(kind)) std::reverse(units.begin(), units.end());
  first_of_pass_.push_back(computes_.size());
  for (int unit : units) {
    computes_of_unit_[unit].push_back(computes_.size());
    computes_.push_back({kind, unit, pass.microbatch});
  }
}

bool ScheduleTrace::runs_on(size_t i, Peers peers) const {
  const Compute& compute = computes_[i];
  const Work& work = work_[static_cast<size_t>(peers)][compute.microbatch];
  return is_backward(compute.kind) ? work.backward[compute.unit] : work.forward[compute.unit];
}

bool ScheduleTrace::has_items(const Compute& compute) const {
  const UnitSpec& unit = input_.model.units[compute.unit];
  const auto share = input_.item_shares.find(unit.module);
  if (share == input_.item_shares.end()) return true;
  const int64_t items = input_.microbatches[compute.microbatch].items.of(unit.encoder);
  return receives_any(items, share->second.rank);
}

std::vector<int> ScheduleTrace::moved_units(size_t i) const {
  const Compute& compute = computes_[i];
  const UnitSpec& unit = input_.model.units[compute.unit];
  std::vector<int> moved;
  if (!input_.moves_features || !runs_in_replica(i) || compute.kind == ActionKind::BackwardWeight)
    return moved;
  for (const UnitInput& input : unit.inputs) {
    const UnitSpec& source = input_.model.units[input.unit];
    if (source.module == unit.module || input_.pipeline.group_of_unit(input.unit) != input_.group)
      continue;
    const Work& work = work_here(compute.microbatch);
    if (is_backward(compute.kind) ? work.backward[input.unit] : work.forward[input.unit])
      moved.push_back(input.unit);
  }
  return moved;
}

void ScheduleTrace::find_received_units() {
  for (const PipelineEdge& edge : edges_of(input_.pipeline, input_.model))
    if (edge.to == input_.group) received_[edge.receiver].push_back(edge.unit);
}

/// Returns the units that have work in this rank's replica.
std::vector<int> ScheduleTrace::received_units(const Compute& compute) const {
  std::vector<int> units = received_[compute.unit];
  const Work& work = work_here(compute.microbatch);
  std::erase_if(units, [&](int unit) { return !work.forward[unit]; });
  return units;
}

// An output that several units of this stage group read is received once, before the first of them,
// and its gradient goes back once, after that one's backward, which is the last.
std::vector<Action> ScheduleTrace::transfers(size_t i, bool before) const {
  const Compute& compute = computes_[i];
  std::vector<Action> actions;
  if (!runs_here(i) || compute.kind == ActionKind::BackwardWeight) return actions;
  const bool backward = is_backward(compute.kind);
  if (before == backward) {  // of the unit itself
    const ActionKind kind = backward ? ActionKind::ReceiveGradient : ActionKind::Send;
    for (int group : reading_groups(compute))
      actions.push_back({kind, compute.unit, -1, compute.microbatch, group});
    return actions;
  }
  const ActionKind kind = backward ? ActionKind::SendGradient : ActionKind::Receive;
  for (int unit : received_units(compute))
    if (!backward || work_here(compute.microbatch).backward[unit])
      actions.push_back({kind, unit, -1, compute.microbatch, input_.pipeline.group_of_unit(unit)});
  if (backward) std::reverse(actions.begin(), actions.end());  // as their units' backwards follow
  return actions;
}

std::vector<int> ScheduleTrace::reading_groups(const Compute& compute) const {
  std::set<int> groups;
  for (int reader : readers_[compute.unit])
    if (work_here(compute.microbatch).forward[reader])
      groups.insert(input_.pipeline.group_of_unit(reader));
  groups.erase(input_.group);
  return {groups.begin(), groups.end()};
}

std::vector<size_t> ScheduleTrace::uses(int buffer) const {
  std::vector<size_t> found = all_uses(buffer);
  const Peers peers = peers_along({&input_.shardings[buffer].sharded_over});
  std::erase_if(found, [&](size_t i) { return !runs_on(i, peers); });
  return found;
}

/// Whether nothing but units of one FSDP unit lies between them.
bool ScheduleTrace::is_contiguous(size_t a, size_t b, int fsdp_unit) const {
  for (size_t i = a + 1; i < b; ++i)
    if (fsdp_unit < 0 || input_.fsdp_units[computes_[i].unit] != fsdp_unit) return false;
  return true;
}

bool ScheduleTrace::is_between_forward_and_backward(size_t a, size_t b) const {
  return input_.kind == StepKind::Train && computes_[a].kind == ActionKind::Forward &&
         computes_[a].microbatch == computes_[b].microbatch;
}

std::vector<LiveRange> ScheduleTrace::live_ranges(int buffer) const {
  const Sharding& sharding = input_.shardings[buffer];
  std::vector<LiveRange> found;
  for (size_t use : uses(buffer)) {
    const bool follows = !found.empty();
    const bool waits = follows && is_between_forward_and_backward(found.back().last, use);
    if (follows && (sharding.keeps_for_step ||
                    is_contiguous(found.back().last, use, input_.buffers[buffer].fsdp_unit) ||
                    (waits && sharding.keeps_until_backward))) {
      found.back().last = use;
      continue;
    }
    const bool subgroup = waits && sharding.subgroup > 0;
    if (subgroup) found.back().to_subgroup = true;
    found.push_back({.buffer = buffer, .first = use, .last = use, .from_subgroup = subgroup});
  }
  return found;
}

std::vector<Accumulation> ScheduleTrace::accumulations(int buffer) const {
  const bool each = input_.shardings[buffer].reduces_each_microbatch;
  std::vector<Accumulation> found;
  for (size_t use : uses(buffer)) {
    if (!is_backward(computes_[use].kind)) continue;
    const bool same_microbatch =
        !found.empty() && computes_[found.back().last].microbatch == computes_[use].microbatch;
    const bool joins =
        !found.empty() &&
        (!each || (same_microbatch &&
                   is_contiguous(found.back().last, use, input_.buffers[buffer].fsdp_unit)));
    if (joins)
      found.back().last = use;
    else
      found.push_back({buffer, use, use});
  }
  return found;
}

std::optional<size_t> ScheduleTrace::last_backward(int buffer) const {
  const std::vector<size_t>& all = all_uses(buffer);
  const Sharding& sharding = input_.shardings[buffer];
  const Peers peers = peers_along({&sharding.sharded_over, &sharding.summed_over});
  for (auto use = all.rbegin(); use != all.rend(); ++use)
    if (is_backward(computes_[*use].kind) && runs_on(*use, peers)) return *use;
  return std::nullopt;
}

ScheduleTrace::Point ScheduleTrace::unshard_point(const LiveRange& range) const {
  const Sharding& sharding = input_.shardings[range.buffer];
  const Prefetch prefetch = computes_[range.first].kind == ActionKind::Forward
                                ? sharding.forward_prefetch
                                : sharding.backward_prefetch;
  if (prefetch == Prefetch::None) return {range.first, false};
  // Not before the buffer was dropped after its use before this one. Whether that use has work does
  // not count, so that a buffer never lives where a walk with work for every unit does not have it.
  const std::vector<size_t>& all = all_uses(range.buffer);
  const auto own = std::lower_bound(all.begin(), all.end(), range.first);
  const bool is_first = own == all.begin();
  const size_t before = is_first ? 0 : *(own - 1);
  const std::optional<size_t> ahead = units_before(range.first, sharding.prefetch_depth);
  if (!ahead) return {is_first ? 0 : before + 1, false};
  if (prefetch == Prefetch::Post) return {std::max(*ahead, before), true};
  return {is_first ? *ahead : std::max(*ahead, before + 1), false};
}

std::vector<ScheduleTrace::Transfers> ScheduleTrace::transfers() const {
  std::vector<Transfers> passes;
  size_t last_reading = 0;  ///< in the pass before
  for (size_t pass = 0; pass < first_of_pass_.size(); ++pass) {
    const size_t first = first_of_pass_[pass];
    const size_t end = pass + 1 < first_of_pass_.size() ? first_of_pass_[pass + 1] : size();
    Transfers& made = passes.emplace_back();
    std::map<int, std::pair<size_t, std::vector<Action>>> sends;  ///< by stage group
    size_t reading = first;
    for (size_t i = first; i < end; ++i) {
      const std::vector<Action> receives = transfers(i, true);
      made.receives.insert(made.receives.end(), receives.begin(), receives.end());
      if (!receives.empty()) reading = i;
      for (const Action& action : transfers(i, false)) {
        auto& [last, actions] = sends[action.group];
        last = i;
        actions.push_back(action);
      }
    }
    std::ranges::stable_sort(made.receives, {}, &Action::group);
    made.receive_point = pass == 0 ? Point{first, false} : Point{last_reading, true};
    last_reading = reading;
    for (auto& [group, last_and_actions] : sends) {
      auto& [last, actions] = last_and_actions;
      std::vector<Action>& after = made.sends_after[last];
      after.insert(after.end(), actions.begin(), actions.end());
    }
  }
  return passes;
}

std::optional<size_t> ScheduleTrace::units_before(size_t index, int units) const {
  while (index-- > 0) {
    const bool counts = !input_.model.units[computes_[index].unit].params.empty();
    if (counts && --units == 0) return index;
  }
  return std::nullopt;
}

}  // namespace detail

bool has_joint_backward(const UnitSpec& unit) {
  return unit.encoder < 0 && (unit.kind == UnitKind::Block || unit.kind == UnitKind::Head);
}

bool unit_runs(const UnitSpec& unit, const MicrobatchKind& microbatch) {
  return unit.encoder < 0 ? microbatch.has_samples : microbatch.items.of(unit.encoder) > 0;
}

}  // namespace zea
