// SPDX-License-Identifier: Apache-2.0
#include "schedule/schedule.hpp"

#include <algorithm>

#include "schedule/schedule_trace.hpp"

namespace zea {
namespace {

using detail::Accumulation;
using detail::LiveRange;
using detail::ScheduleTrace;

/// The communication slots of one computation: actions before and after it.
struct CommunicationSlots {
  std::vector<LiveRange> unshard_before, reshard, unshard_after;
  std::vector<Action> receive_before, receive_after, send, reduce;
};

class Scheduler {
 public:
  explicit Scheduler(const ScheduleInput& input)
      : input_(input), trace_(input), around_(trace_.size()), has_gradient_(input.buffers.size()) {
    for (size_t g = 0; g < input.buffers.size(); ++g) {
      const int buffer = static_cast<int>(g);
      if (input.shardings[g].gathered()) place_live_ranges(buffer);
      if (input.buffers[g].trainable && input.kind == StepKind::Train) place_reductions(buffer);
    }
    place_transfers();
  }

  Schedule schedule() {
    for (size_t i = 0; i < trace_.size(); ++i) {
      const detail::Compute& compute = trace_[i];
      unshard(around_[i].unshard_before);
      compute_here(i);
      for (const LiveRange& range : around_[i].reshard)
        actions_.push_back({range.to_subgroup ? ActionKind::ReshardSubgroup : ActionKind::Reshard,
                            -1, range.buffer, compute.microbatch});
      unshard(around_[i].unshard_after);
      actions_.insert(actions_.end(), around_[i].reduce.begin(), around_[i].reduce.end());
    }
    return {std::move(actions_), std::move(has_gradient_)};
  }

 private:
  /// All messages of a pass between two stage groups are one call: on a device the calls of a link
  /// follow each other, and with two of them a pass the second, and all that is launched behind it,
  /// would wait for the other end to come to the first. Receipts start a pass ahead and travel
  /// under it, once that pass has received what it reads itself.
  void place_transfers() {
    for (const ScheduleTrace::Transfers& pass : trace_.transfers()) {
      if (!pass.receives.empty()) {
        CommunicationSlots& around = around_[pass.receive_point.index];
        (pass.receive_point.after ? around.receive_after : around.receive_before) = pass.receives;
      }
      for (const auto& [i, sends] : pass.sends_after) around_[i].send = sends;
    }
  }

  void place_live_ranges(int buffer) {
    for (const LiveRange& range : trace_.live_ranges(buffer)) {
      const ScheduleTrace::Point point = trace_.unshard_point(range);
      CommunicationSlots& around = around_[point.index];
      (point.after ? around.unshard_after : around.unshard_before).push_back(range);
      around_[range.last].reshard.push_back(range);
    }
  }

  void place_reductions(int buffer) {
    const Sharding& sharding = input_.shardings[buffer];
    if (sharding.gathered())
      for (const Accumulation& sum : trace_.accumulations(buffer))
        around_[sum.last].reduce.push_back(
            {ActionKind::ReduceShard, -1, buffer, trace_[sum.last].microbatch});
    const auto last = trace_.last_backward(buffer);
    has_gradient_[buffer] = last.has_value();
    // Once per step, where the last rank of the job that has work makes its backward.
    if (last && sharding.replicas > 1)
      around_[*last].reduce.push_back(
          {ActionKind::ReduceReplicas, -1, buffer, trace_[*last].microbatch});
  }

  /// The outputs of other modules arrive before the forward that reads it; its gradient goes back
  /// after the backward. All ranks of the replica take part, those without items, too.
  void compute_here(size_t i) {
    const detail::Compute& compute = trace_[i];
    const bool back = compute.kind != ActionKind::Forward;
    const auto move = [&](ActionKind kind) {
      for (int unit : trace_.moved_units(i))
        actions_.push_back({kind, unit, -1, compute.microbatch});
    };
    const auto add = [&](const std::vector<Action>& transfers) {
      actions_.insert(actions_.end(), transfers.begin(), transfers.end());
    };
    add(around_[i].receive_before);
    if (!back) move(ActionKind::Move);
    if (trace_.runs_here(i))
      actions_.push_back({compute.kind, compute.unit, -1, compute.microbatch});
    add(around_[i].receive_after);
    if (back) move(ActionKind::MoveBack);
    add(around_[i].send);
  }

  /// Gathers the buffers that are needed first before the others.
  void unshard(std::vector<LiveRange>& ranges) {
    std::stable_sort(ranges.begin(), ranges.end(),
                     [](const LiveRange& a, const LiveRange& b) { return a.first < b.first; });
    for (const LiveRange& range : ranges)
      actions_.push_back({range.from_subgroup ? ActionKind::UnshardSubgroup : ActionKind::Unshard,
                          -1, range.buffer, trace_[range.first].microbatch});
  }

  const ScheduleInput& input_;
  ScheduleTrace trace_;
  std::vector<CommunicationSlots> around_;
  std::vector<Action> actions_;
  std::vector<bool> has_gradient_;
};

}  // namespace

Schedule make_schedule(const ScheduleInput& input) {
  return Scheduler(input).schedule();
}

std::string describe(const Action& action, const ModelSpec& model,
                     const std::vector<FlatBuffer>& buffers) {
  constexpr const char* kNames[] = {
      "unshard",       "unshard_subgroup", "reshard",        "reshard_subgroup",
      "forward",       "backward",         "backward_input", "backward_weight",
      "move",          "move_back",        "send",           "receive",
      "send_gradient", "receive_gradient", "reduce_shard",   "reduce_replicas"};
  const std::string& subject =
      action.unit >= 0 ? model.units[action.unit].name : buffers[action.buffer].name;
  return std::string(kNames[static_cast<int>(action.kind)]) + " " + subject + " microbatch " +
         std::to_string(action.microbatch);
}

}  // namespace zea
