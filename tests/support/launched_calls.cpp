// SPDX-License-Identifier: Apache-2.0
#include "support/launched_calls.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "core/text.hpp"
#include "layout/reduction.hpp"

namespace zea::testing {
namespace {

/// With another rank: both ends know what they meet in by the same name.
using Meeting = std::pair<std::string, int>;

struct Call {
  std::string name, communicator;
  std::vector<Meeting> meetings;
  bool has_begun = false, has_ended = false;
};

/// Computation launches a call, or waits for one.
struct Step {
  size_t call;
  bool waits;
};

bool is_back(const Action& action) {
  return action.kind == ActionKind::SendGradient || action.kind == ActionKind::ReceiveGradient;
}

bool is_send(const Action& action) {
  return action.kind == ActionKind::Send || action.kind == ActionKind::SendGradient;
}

/// The calls and waits of a rank in a step, in the engine's order.
class Program {
 public:
  Program(const Plan& plan, const ActionLists& lists, int rank, HostWaits waits)
      : plan_(plan),
        lists_(lists),
        rank_(rank),
        waits_(waits),
        buffers_of_unit_(buffers_of_units(plan.model, plan.buffers)) {
    for (const Action& action : lists[static_cast<size_t>(rank)]) {
      if (action.group < 0) last_message_.reset();
      take(action);
    }
    finish_reduction();
    for (const size_t call : replicas_) wait(call);
    for (const size_t call : sent_) wait(call);
  }

  std::vector<Call> calls;
  std::vector<Step> steps;

 private:
  const std::string& module_of(int unit) const {
    return plan_.model.units[static_cast<size_t>(unit)].module;
  }
  std::string name_of(const Action& action) const {
    return describe(action, plan_.model, plan_.buffers);
  }

  void take(const Action& action) {
    switch (action.kind) {
      case ActionKind::Unshard:
        return gather(action, shards_of(action.buffer));
      case ActionKind::UnshardSubgroup:
        return gather(action, shard_subgroup(plan_.mesh, rank_, module(action.buffer),
                                             sharding(action.buffer).subgroup));
      case ActionKind::Reshard:
      case ActionKind::ReshardSubgroup:
        return wait_for_gathered(action.buffer);
      case ActionKind::Forward:
      case ActionKind::Backward:
      case ActionKind::BackwardInput:
      case ActionKind::BackwardWeight:
        return compute(action);
      case ActionKind::Move:
      case ActionKind::MoveBack:
        return meet(action, plan_.mesh.group(rank_, kDecoder, stage_axes()));
      case ActionKind::Send:
      case ActionKind::SendGradient:
        if (const auto call = message(action)) sent_.push_back(*call);
        return;
      case ActionKind::Receive:
      case ActionKind::ReceiveGradient:
        if (const auto call = message(action)) received_.push_back({action, *call});
        return;
      case ActionKind::ReduceShard:
        finish_reduction();
        reducing_ = {action.buffer, launch(action, shards_of(action.buffer), " reductions"), {}};
        return;
      case ActionKind::ReduceReplicas:
        if (reducing_ && reducing_->of_replicas) finish_reduction();
        if (reducing_ && reducing_->buffer == action.buffer)
          reducing_->of_replicas = action;
        else
          reduce_replicas(action);
        return;
    }
  }

  const Sharding& sharding(int buffer) const {
    return plan_.shardings[static_cast<size_t>(buffer)];
  }
  const std::string& module(int buffer) const {
    return plan_.buffers[static_cast<size_t>(buffer)].module;
  }
  std::vector<int> shards_of(int buffer) const {
    return plan_.mesh.group(rank_, module(buffer), sharding(buffer).sharded_over);
  }

  /// Nothing where a rank is alone.
  std::optional<size_t> launch(const Action& action, const std::vector<int>& ranks,
                               const std::string& suffix = "") {
    if (ranks.size() < 2) return std::nullopt;
    const std::string communicator =
        join(ranks, " ", [](int rank) { return std::to_string(rank); }) + suffix;
    const int number = ++launched_[communicator];
    // Not the microbatch: replicas may have the last work of a kind in different ones.
    const std::string subject =
        action.unit >= 0 ? module_of(action.unit) : std::to_string(action.buffer);
    Call call{name_of(action), communicator, {}};
    for (const int rank : ranks)
      if (rank != rank_)
        call.meetings.push_back(
            {communicator + " #" + std::to_string(number) + " " + subject, rank});
    return add(std::move(call));
  }

  size_t add(Call call) {
    calls.push_back(std::move(call));
    steps.push_back({calls.size() - 1, false});
    return calls.size() - 1;
  }

  void wait(std::optional<size_t> call) {
    if (call) steps.push_back({*call, true});
  }

  void meet(const Action& action, const std::vector<int>& ranks) { wait(launch(action, ranks)); }

  void gather(const Action& action, const std::vector<int>& ranks) {
    gathered_[action.buffer] = launch(action, ranks);
  }

  void wait_for_gathered(int buffer) {
    if (const auto found = gathered_.find(buffer); found != gathered_.end())
      wait(std::exchange(found->second, std::nullopt));
  }

  void compute(const Action& action) {
    for (const int buffer : buffers_of_unit_[static_cast<size_t>(action.unit)]) {
      wait_for_gathered(buffer);
      if (action.kind != ActionKind::Forward) open_gradient(buffer);
    }
    for (auto& [receipt, call] : received_)
      if (call && is_read(receipt, action)) wait(std::exchange(call, std::nullopt));
    for (size_t call = 0; call < calls.size() && waits_ == HostWaits::ForMemory; ++call) wait(call);
    meet(action, plan_.mesh.group(rank_, module_of(action.unit), {Axis::Cp, Axis::Tp}));
  }

  bool is_read(const Action& receipt, const Action& compute) const {
    if (receipt.microbatch != compute.microbatch) return false;
    if (receipt.kind == ActionKind::ReceiveGradient)
      return compute.kind != ActionKind::Forward && compute.unit == receipt.unit;
    return std::ranges::any_of(plan_.model.units[static_cast<size_t>(compute.unit)].inputs,
                               [&](const UnitInput& input) { return input.unit == receipt.unit; });
  }

  /// The slot of its gradient may hold one that is on its way.
  void open_gradient(int buffer) {
    if (!reducing_) return;
    const std::vector<int>& slots =
        plan_.slots[static_cast<size_t>(plan_.group_of(rank_))].gradients.slot_of_buffer;
    const int slot = slots[static_cast<size_t>(buffer)];
    const bool is_taken = plan_.buffers[static_cast<size_t>(buffer)].trainable && slot >= 0 &&
                          slot == slots[static_cast<size_t>(reducing_->buffer)];
    if (reducing_->buffer == buffer || is_taken) finish_reduction();
  }

  void finish_reduction() {
    if (!reducing_) return;
    const Reduction done = *std::exchange(reducing_, std::nullopt);
    wait(done.call);
    if (done.of_replicas) reduce_replicas(*done.of_replicas);
  }

  void reduce_replicas(const Action& action) {
    if (const auto call = launch(action, plan_.mesh.group(rank_, module(action.buffer),
                                                          sharding(action.buffer).summed_over)))
      replicas_.push_back(*call);
  }

  /// With the ranks at the other end that have it in their lists, too.
  std::optional<size_t> message(const Action& action) {
    const std::vector<StageGroup>& groups = plan_.pipeline.stage_groups;
    const int here = plan_.group_of(rank_);
    const bool is_output_of_here = is_send(action) != is_back(action);
    const std::string communicator = std::to_string(plan_.replica_of(rank_)) + ": " +
                                     std::to_string(is_output_of_here ? here : action.group) + ">" +
                                     std::to_string(is_output_of_here ? action.group : here) +
                                     (is_back(action) ? " gradients" : " outputs");
    Call call{name_of(action), communicator, {}};
    const int first = plan_.replica_of(rank_) * plan_.mesh.ranks_per_replica() +
                      groups[static_cast<size_t>(action.group)].first_rank;
    for (int rank = first; rank < first + groups[static_cast<size_t>(action.group)].ranks; ++rank)
      if (takes_part(action, rank)) {
        const int sender = is_send(action) ? rank_ : rank,
                  receiver = is_send(action) ? rank : rank_;
        call.meetings.push_back({communicator + " " + std::to_string(action.unit) + " " +
                                     std::to_string(action.microbatch) + " " +
                                     std::to_string(sender) + ">" + std::to_string(receiver),
                                 rank});
      }
    if (call.meetings.empty()) return std::nullopt;
    // Neighbors between two stage groups are one call.
    if (last_message_ && last_.kind == action.kind && last_.group == action.group) {
      std::vector<Meeting>& meetings = calls[*last_message_].meetings;
      meetings.insert(meetings.end(), call.meetings.begin(), call.meetings.end());
    } else {
      last_message_ = add(std::move(call));
    }
    last_ = action;
    return last_message_;
  }

  bool takes_part(const Action& action, int rank) const {
    if (!plan_.model.makes_features(action.unit)) {
      const std::string& module = module_of(action.unit);
      const Coordinate own = plan_.mesh.coordinate(rank_, module),
                       other = plan_.mesh.coordinate(rank, module);
      if (own.tp != other.tp || own.cp != other.cp || own.encoder_dp != other.encoder_dp)
        return false;
    }
    const ActionKind kinds[] = {ActionKind::Send, ActionKind::Receive, ActionKind::SendGradient,
                                ActionKind::ReceiveGradient};
    const Action there{kinds[(is_back(action) ? 2 : 0) + (is_send(action) ? 1 : 0)], action.unit,
                       -1, action.microbatch, plan_.group_of(rank_)};
    return std::ranges::count(lists_[static_cast<size_t>(rank)], there) > 0;
  }

  struct Reduction {
    int buffer;
    std::optional<size_t> call;
    std::optional<Action> of_replicas;
  };

  const Plan& plan_;
  const ActionLists& lists_;
  int rank_;
  HostWaits waits_;
  std::vector<std::vector<int>> buffers_of_unit_;
  Action last_{ActionKind::Send};  ///< with messages
  std::optional<size_t> last_message_;
  std::map<std::string, int> launched_;
  std::map<int, std::optional<size_t>> gathered_;
  std::vector<std::pair<Action, std::optional<size_t>>> received_;
  std::optional<Reduction> reducing_;
  std::vector<size_t> replicas_, sent_;
};

/// The programs of all ranks side by side.
class Device {
 public:
  Device(const Plan& plan, const ActionLists& lists, HostWaits waits) {
    for (int rank = 0; rank < plan.world_size(); ++rank)
      ranks_.push_back({Program(plan, lists, rank, waits)});
  }

  std::string run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank)
        if (advance(static_cast<int>(rank))) moved = true;
    }
    std::string text;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) text += where(static_cast<int>(rank));
    return text;
  }

 private:
  struct Rank {
    Program program;
    size_t next = 0;      ///< step
    size_t launched = 0;  ///< calls
    size_t begun = 0;
    std::map<std::string, size_t> last_begun = {};  ///< call of each communicator
  };

  bool advance(int number) {
    Rank& rank = ranks_[static_cast<size_t>(number)];
    std::vector<Call>& calls = rank.program.calls;
    bool moved = false;
    for (; rank.next < rank.program.steps.size(); ++rank.next, moved = true) {
      const Step& step = rank.program.steps[rank.next];
      if (step.waits && !calls[step.call].has_ended) break;
      if (!step.waits) ++rank.launched;
    }
    for (; rank.begun < rank.launched; ++rank.begun, moved = true) {
      Call& call = calls[rank.begun];
      const auto last = rank.last_begun.find(call.communicator);
      if (last != rank.last_begun.end() && !calls[last->second].has_ended) break;
      rank.last_begun[call.communicator] = rank.begun;
      call.has_begun = true;
      for (const auto& [name, other] : call.meetings) begun_.insert({name, number});
    }
    for (size_t i = 0; i < rank.begun; ++i) {
      Call& call = calls[i];
      if (call.has_ended) continue;
      call.has_ended = std::ranges::all_of(
          call.meetings, [&](const Meeting& meeting) { return begun_.contains(meeting); });
      if (call.has_ended) moved = true;
    }
    return moved;
  }

  std::string where(int number) const {
    const Rank& rank = ranks_[static_cast<size_t>(number)];
    if (rank.next == rank.program.steps.size()) return "";
    const Call& call = rank.program.calls[rank.program.steps[rank.next].call];
    std::string text = "rank " + std::to_string(number) + " waits for " + call.name;
    if (!call.has_begun) {
      const Call& first = rank.program.calls[rank.begun];
      text += " to begin, behind " + first.name + ", behind " +
              rank.program.calls[rank.last_begun.at(first.communicator)].name;
    }
    return text + "\n";
  }

  std::vector<Rank> ranks_;
  std::set<Meeting> begun_;  ///< and by whom
};

}  // namespace

std::string launch_deadlock(const Plan& plan, const ActionLists& lists, HostWaits waits) {
  return Device(plan, lists, waits).run();
}

}  // namespace zea::testing
