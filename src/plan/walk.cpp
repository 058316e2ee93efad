// SPDX-License-Identifier: Apache-2.0
#include "walk.hpp"

#include <algorithm>

#include "zea/plan/deal.hpp"

namespace zea {
namespace detail {

Walk::Walk(const ScheduleInput& input) : input_(input) {
  for (const auto& microbatches : input.step.replicas) {
    has_backward_.emplace_back();
    for (const MicrobatchPlan& microbatch : microbatches)
      has_backward_.back().push_back(units_with_backward(input.model, microbatch));
  }
  for (const MicrobatchPlan& microbatch : input.step.replicas[input.replica])
    has_own_items_.push_back(
        input.model.vision &&
        !deal_images(microbatch.items, *input.model.vision, input.item_ranks)[input.item_rank]
             .empty());
  const int units = static_cast<int>(input.model.units.size());
  for (int microbatch = 0; microbatch < input.step.num_microbatches(); ++microbatch) {
    for (int unit = 0; unit < units; ++unit)
      computes_.push_back({ActionKind::Forward, unit, microbatch});
    for (int unit = units; !input.forward_only && unit-- > 0;)
      computes_.push_back({ActionKind::Backward, unit, microbatch});
  }
}

bool Walk::runs_on(size_t i, const std::vector<int>& replicas) const {
  const Compute& compute = computes_[i];
  return std::any_of(replicas.begin(), replicas.end(), [&](int replica) {
    return compute.kind == ActionKind::Backward
               ? has_backward_[replica][compute.microbatch][compute.unit]
               : unit_runs(input_.model.units[compute.unit],
                           input_.step.replicas[replica][compute.microbatch]);
  });
}

bool Walk::has_items(const Compute& compute) const {
  return input_.model.units[compute.unit].module != "vision" || has_own_items_[compute.microbatch];
}

std::vector<int> Walk::moved_units(size_t i) const {
  const Compute& compute = computes_[i];
  const UnitSpec& unit = input_.model.units[compute.unit];
  const MicrobatchPlan& microbatch = input_.step.replicas[input_.replica][compute.microbatch];
  const bool back = compute.kind == ActionKind::Backward;
  std::vector<int> moved;
  if (!input_.moves_features || !runs_in_replica(i)) return moved;
  for (const UnitInput& input : unit.inputs) {
    const UnitSpec& source = input_.model.units[input.unit];
    if (source.module == unit.module || !unit_runs(source, microbatch)) continue;
    if (!back || has_backward_[input_.replica][compute.microbatch][input.unit])
      moved.push_back(input.unit);
  }
  return moved;
}

std::vector<size_t> Walk::all_uses(int group) const {
  const std::vector<int>& units = input_.groups[group].units;  // ascending
  const size_t num_units = input_.model.units.size();
  const size_t stride = input_.forward_only ? num_units : 2 * num_units;
  std::vector<size_t> found;
  for (size_t begin = 0; begin < computes_.size(); begin += stride) {
    for (int unit : units) found.push_back(begin + unit);
    if (input_.forward_only) continue;
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit)
      found.push_back(begin + stride - 1 - *unit);
  }
  return found;
}

std::vector<size_t> Walk::uses(int group) const {
  std::vector<size_t> found = all_uses(group);
  std::erase_if(found, [&](size_t i) { return !runs_on(i, input_.shard_peers[group]); });
  return found;
}

/// Nothing but the units of one bundle lies between them.
bool Walk::is_contiguous(size_t a, size_t b, int bundle) const {
  for (size_t i = a + 1; i < b; ++i)
    if (bundle < 0 || input_.bundles[computes_[i].unit] != bundle) return false;
  return true;
}

bool Walk::is_between_forward_and_backward(size_t a, size_t b) const {
  return !input_.forward_only && computes_[a].kind == ActionKind::Forward &&
         computes_[a].microbatch == computes_[b].microbatch;
}

std::vector<Stay> Walk::stays(int group) const {
  const Sharding& sharding = input_.shardings[group];
  std::vector<Stay> found;
  for (size_t use : uses(group)) {
    const bool follows = !found.empty();
    const bool waits = follows && is_between_forward_and_backward(found.back().last, use);
    if (follows && (is_contiguous(found.back().last, use, input_.groups[group].bundle) ||
                    (waits && sharding.keeps_until_backward))) {
      found.back().last = use;
      continue;
    }
    const bool subgroup = waits && sharding.subgroup > 0;
    if (subgroup) found.back().to_subgroup = true;
    found.push_back({.group = group, .first = use, .last = use, .from_subgroup = subgroup});
  }
  return found;
}

std::vector<Accumulation> Walk::accumulations(int group) const {
  const bool each = input_.shardings[group].reduces_each_microbatch;
  std::vector<Accumulation> found;
  for (size_t use : uses(group)) {
    if (computes_[use].kind != ActionKind::Backward) continue;
    const bool same_microbatch =
        !found.empty() && computes_[found.back().last].microbatch == computes_[use].microbatch;
    const bool joins = !found.empty() &&
                       (!each || (same_microbatch && is_contiguous(found.back().last, use,
                                                                   input_.groups[group].bundle)));
    if (joins)
      found.back().last = use;
    else
      found.push_back({group, use, use});
  }
  return found;
}

std::optional<size_t> Walk::last_backward(int group) const {
  const std::vector<size_t> all = all_uses(group);
  for (auto use = all.rbegin(); use != all.rend(); ++use)
    if (computes_[*use].kind == ActionKind::Backward && runs_on(*use, input_.all_peers[group]))
      return *use;
  return std::nullopt;
}

Walk::Place Walk::unshard_place(const Stay& stay) const {
  const Sharding& sharding = input_.shardings[stay.group];
  const Prefetch prefetch = computes_[stay.first].kind == ActionKind::Forward
                                ? sharding.forward_prefetch
                                : sharding.backward_prefetch;
  if (prefetch == Prefetch::None) return {stay.first, false};
  // Not before the buffer was dropped after its use before this one. Whether that use has work does
  // not count, so that a buffer never lives where a walk with work for every unit does not have it.
  const std::vector<size_t> all = all_uses(stay.group);
  const auto own = std::lower_bound(all.begin(), all.end(), stay.first);
  const bool is_first = own == all.begin();
  const size_t before = is_first ? 0 : *(own - 1);
  const std::optional<size_t> ahead = units_before(stay.first, sharding.prefetch_depth);
  if (!ahead) return {is_first ? 0 : before + 1, false};
  if (prefetch == Prefetch::Post) return {std::max(*ahead, before), true};
  return {is_first ? *ahead : std::max(*ahead, before + 1), false};
}

std::optional<size_t> Walk::units_before(size_t index, int units) const {
  while (index-- > 0) {
    const bool counts = !input_.model.units[computes_[index].unit].params.empty();
    if (counts && --units == 0) return index;
  }
  return std::nullopt;
}

}  // namespace detail

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

}  // namespace zea
