// SPDX-License-Identifier: Apache-2.0
#include "estimate/step_timeline.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "estimate/step_facts.hpp"
#include "estimate/traffic.hpp"
#include "schedule/simulate.hpp"

namespace zea::detail {
namespace {

Wait wait_of(const std::string& group) {
  if (group.find('>') != std::string::npos) return Wait::Pp;
  const std::string name = group.substr(group.rfind('.') + 1);
  if (name == "tp" || name == "kv_holders") return Wait::Tp;
  if (name == "cp" || name == "cp_inner" || name == "cp_outer") return Wait::Cp;
  if (name.starts_with("tied")) return Wait::Pp;
  if (name == "ep_cp" || name == "ep_dp_shard") return Wait::Ep;
  const bool is_dp = name.find("dp_shard") != std::string::npos ||
                     name.find("dp_replicate") != std::string::npos || name == "shard_subgroup";
  return is_dp ? Wait::Dp : Wait::Modules;
}

double sum_of(const WaitSeconds& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

/// Ranks with the same key have the same rows: those that neither make nor take features, with the
/// same part of the same modules, and both with a head or without.
std::vector<int> rows_key(const Plan& plan, const ReplicaLayout& layout) {
  std::vector<int> key{layout.has_head(layout.rank)};
  for (const std::string& module : plan.model.modules()) {
    if (!plan.model.encoders.empty() && layout.has_features(layout.rank, module))
      return {-1, layout.rank};
    if (!layout.has(layout.rank, module)) {
      key.push_back(-1);
      continue;
    }
    const Coordinate coordinate = layout.coordinate(layout.rank, module);
    key.insert(key.end(), {coordinate.encoder_dp, coordinate.cp, coordinate.tp});
  }
  return key;
}

/// The passes of one rank after the other, by unit class.
class RankPasses {
 public:
  RankPasses(const Plan& plan, int rank, UnitTimes& units, CallTimes& calls, bool overlaps)
      : plan_(plan), rank_(rank), units_(units), calls_(calls), overlaps_(overlaps) {}

  void forget() { known_.clear(); }

  const UnitPass& of(int unit, const ModuleRows& rows) {
    const auto [found, is_new] = known_.try_emplace(units_.class_of(unit));
    UnitPass& pass = found->second;
    if (!is_new) return pass;
    pass.kernels = units_.of(unit, rows);
    if (rows.held.all() == 0 && rows.read.all() == 0) return pass;
    add_calls(pass.forward, unit, rows, false, pass.kernels);
    add_calls(pass.backward, unit, rows, true, pass.kernels);
    return pass;
  }

 private:
  /// Keys that are passed around travel under attention.
  void add_calls(WaitSeconds& waits, int unit, const ModuleRows& rows, bool backward,
                 const UnitSeconds& kernels) {
    const double attention = backward ? kernels.attention_backward : kernels.attention_forward;
    double passed_around = 0;
    for (const SentCall& call : calls_of_unit(plan_, unit, rows, rank_, backward)) {
      const double seconds = calls_.seconds(rank_, call);
      const Wait wait = wait_of(call.group);
      if (wait == Wait::Cp && call.kind == CollectiveKind::Send && overlaps_)
        passed_around += seconds;
      else
        waits[static_cast<size_t>(wait)] += exposed_seconds(call, seconds, kernels, overlaps_);
    }
    waits[static_cast<size_t>(Wait::Cp)] += std::max(0.0, passed_around - attention);
  }

  const Plan& plan_;
  int rank_;
  UnitTimes& units_;
  CallTimes& calls_;
  bool overlaps_;
  std::map<int, UnitPass> known_;  ///< of the microbatch at hand
};

/// A call of the data-parallel ranks for a buffer.
struct BufferCall {
  int stream = -1;
  double seconds = 0;
};

/// The stage groups of a replica in parallel; a computation waits for messages of other ones.
class Timeline {
 public:
  Timeline(const Plan& plan, const DistributedStep& step, const ReplicaPasses& passes,
           CallTimes& calls, const Hardware& hardware, std::vector<TimelineSpan>* spans)
      : plan_(plan),
        passes_(passes),
        calls_(calls),
        spans_(spans),
        overlaps_(hardware.device.overlaps),
        buffers_of_unit_(plan.model.units.size()) {
    const bool trains = plan.options.run.mode == RunMode::Train;
    for (const StageGroup& group : plan.pipeline.stage_groups) {
      Lane& lane = lanes_.emplace_back();
      lane.rank = step.replica * plan.mesh.ranks_per_replica() + group.first_rank;
      lane.group = lanes_.size() - 1;
      lane.schedule = plan.rank_step(step.plan, group.first_rank, !trains).schedule;
      lane.ready.resize(plan.buffers.size());
      lane.time.name = group.name;
      lane.time.first_rank = lane.rank;
      lane.time.ranks = group.ranks;
    }
    for (size_t g = 0; g < plan.buffers.size(); ++g)
      for (const int unit : plan.buffers[g].units)
        buffers_of_unit_[static_cast<size_t>(unit)].push_back(static_cast<int>(g));
  }

  ReplicaTimes run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Lane& lane : lanes_)
        while (lane.next < lane.schedule.actions.size() && advance(lane)) moved = true;
    }
    ReplicaTimes times;
    for (Lane& lane : lanes_) {
      if (lane.next < lane.schedule.actions.size())
        throw InternalError("a stage group waits for a message that nobody sends");
      finish(lane);
      times.clocks.push_back(lane.clock);
      times.stages.push_back(std::move(lane.time));
    }
    return times;
  }

 private:
  struct Reduction {
    int buffer;
    double end;
    std::optional<Action> of_replicas = {};  ///< that follows it
  };
  /// A message that a stage group is ready to receive.
  struct Receipt {
    Action action;
    double posted;
    double arrival = -1, seconds = 0;  ///< on its way for so long; -1: not yet known
  };
  struct Lane {
    int rank = 0;
    size_t group = 0, next = 0;
    Schedule schedule;
    double clock = 0;
    double last_start = 0;      ///< of the calls beside the compute stream
    std::vector<double> ready;  ///< of each buffer: when it is gathered
    std::map<int, double> streams;
    std::map<std::pair<int, int>, BufferCall> calls;  ///< by kind of action and buffer
    std::optional<Reduction> reducing;
    std::vector<double> replicas;
    std::vector<Receipt> receipts;  ///< that no computation has read yet
    StageTime time;
    size_t span = std::numeric_limits<size_t>::max();  ///< the last one
  };

  /// Adds a span from the lane's clock on; one that goes on with the last one of the lane is one.
  void draw(Lane& lane, double end, const char* what, int stage, int microbatch) {
    if (spans_ == nullptr || end <= lane.clock) return;
    if (lane.span < spans_->size()) {
      TimelineSpan& last = (*spans_)[lane.span];
      if (last.end == lane.clock && last.what == what && last.stage == stage &&
          last.microbatch == microbatch) {
        last.end = end;
        return;
      }
    }
    lane.span = spans_->size();
    spans_->push_back({static_cast<int>(lane.group), what, stage, microbatch, lane.clock, end});
  }

  void wait(Lane& lane, double until, Wait cause) {
    if (until <= lane.clock) return;
    draw(lane, until, wait_name(cause), -1, -1);
    lane.time.exposed[static_cast<size_t>(cause)] += until - lane.clock;
    lane.clock = until;
  }

  void spend(Lane& lane, double seconds, Wait cause) { wait(lane, lane.clock + seconds, cause); }

  std::vector<SentCall> calls_of(const Lane& lane, Action action) const {
    action.microbatch = static_cast<int>(passes_.kind_of(action.microbatch));
    return calls_of_action(plan_, passes_.rows(lane.group), lane.rank, action);
  }

  /// All calls of an action that have one group: most are one call.
  const BufferCall& call_of(Lane& lane, const Action& action) {
    const auto [found, is_new] =
        lane.calls.try_emplace({static_cast<int>(action.kind), action.buffer});
    if (!is_new) return found->second;
    // Reductions to shards have a communicator of their own.
    const std::string suffix = action.kind == ActionKind::ReduceShard ? " reductions" : "";
    for (const SentCall& call : calls_of(lane, action)) {
      found->second.stream =
          streams_.try_emplace(call.group + suffix, static_cast<int>(streams_.size()))
              .first->second;
      found->second.seconds += calls_.seconds(lane.rank, call);
    }
    return found->second;
  }

  /// Starts a call on the stream of its group behind what has been computed so far. On devices
  /// calls start in the order in which they are launched, whatever their streams.
  double post(Lane& lane, const Action& action) {
    const BufferCall& call = call_of(lane, action);
    if (call.stream < 0) return lane.clock;
    double& stream = lane.streams[call.stream];
    const double start = std::max({lane.clock, stream, lane.last_start});
    stream = start + call.seconds;
    lane.last_start = start;
    if (!overlaps_) wait(lane, stream, Wait::Dp);
    return stream;
  }

  bool advance(Lane& lane) {
    const Action& action = lane.schedule.actions[lane.next];
    switch (action.kind) {
      case ActionKind::Unshard:
      case ActionKind::UnshardSubgroup:
        lane.ready[static_cast<size_t>(action.buffer)] = post(lane, action);
        break;
      case ActionKind::Reshard:
      case ActionKind::ReshardSubgroup:
        break;
      case ActionKind::Forward:
      case ActionKind::Backward:
      case ActionKind::BackwardInput:
      case ActionKind::BackwardWeight:
        if (!meet(lane, action)) return false;
        compute(lane, action);
        break;
      case ActionKind::Move:
      case ActionKind::MoveBack:
        for (const SentCall& call : calls_of(lane, action))
          spend(lane, calls_.seconds(lane.rank, call), Wait::Modules);
        break;
      case ActionKind::Send:
      case ActionKind::SendGradient:
        send(lane, action);
        break;
      case ActionKind::Receive:
      case ActionKind::ReceiveGradient:
        lane.receipts.push_back({action, lane.clock});
        break;
      case ActionKind::ReduceShard:
        finish_reduction(lane);
        lane.reducing = Reduction{action.buffer, post(lane, action)};
        break;
      case ActionKind::ReduceReplicas:
        if (lane.reducing && lane.reducing->of_replicas) finish_reduction(lane);
        if (lane.reducing && lane.reducing->buffer == action.buffer)
          lane.reducing->of_replicas = action;
        else
          lane.replicas.push_back(post(lane, action));
        break;
    }
    ++lane.next;
    return true;
  }

  void finish_reduction(Lane& lane) {
    if (!lane.reducing) return;
    const Reduction done = *std::exchange(lane.reducing, std::nullopt);
    wait(lane, done.end, Wait::Dp);
    if (done.of_replicas) lane.replicas.push_back(post(lane, *done.of_replicas));
  }

  bool reads(const Action& compute, const Action& receipt) const {
    if (compute.microbatch != receipt.microbatch) return false;
    if (compute.kind != ActionKind::Forward)
      return receipt.kind == ActionKind::ReceiveGradient && receipt.unit == compute.unit;
    return receipt.kind == ActionKind::Receive &&
           std::ranges::any_of(plan_.model.units[static_cast<size_t>(compute.unit)].inputs,
                               [&](const UnitInput& input) { return input.unit == receipt.unit; });
  }

  /// Waits for what a computation reads; only the way of the last message counts as communication,
  /// the rest as idle time. False: something is not sent yet.
  bool meet(Lane& lane, const Action& compute) {
    receive(lane);
    const auto is_read = [&](const Receipt& receipt) { return reads(compute, receipt.action); };
    Receipt last{compute, 0};
    for (const Receipt& receipt : lane.receipts) {
      if (!is_read(receipt)) continue;
      if (receipt.arrival < 0) return false;
      if (receipt.arrival > last.arrival) last = receipt;
    }
    if (last.arrival > lane.clock) {
      lane.clock = std::max(lane.clock, last.arrival - last.seconds);
      wait(lane, last.arrival, Wait::Pp);
    }
    std::erase_if(lane.receipts, is_read);
    return true;
  }

  void compute(Lane& lane, const Action& action) {
    const UnitPass& pass = passes_.of(action.unit, action.microbatch);
    for (const int buffer : buffers_of_unit_[static_cast<size_t>(action.unit)]) {
      wait(lane, lane.ready[static_cast<size_t>(buffer)], Wait::Dp);
      if (action.kind != ActionKind::Forward) open_gradient(lane, buffer);
    }
    if (action.kind == ActionKind::BackwardWeight)
      return add(lane, pass.kernels.backward_weight, "weights", action);
    const bool is_forward = action.kind == ActionKind::Forward;
    if (is_forward || plan_.recomputes(action.unit)) add_calls(lane, pass.forward);
    if (is_forward) return add(lane, pass.kernels.forward, "forward", action);
    const double again = pass.kernels.again(plan_.recomputed[static_cast<size_t>(action.unit)]);
    add(lane, again, "backward", action);
    lane.time.recomputed += again;
    add_calls(lane, pass.backward);
    add(lane,
        action.kind == ActionKind::Backward ? pass.kernels.backward() : pass.kernels.backward_input,
        "backward", action);
  }

  /// The calls inside a unit start behind those that were launched before them.
  void add_calls(Lane& lane, const WaitSeconds& calls) {
    if (sum_of(calls) <= 0) return;
    wait(lane, lane.last_start, Wait::Dp);
    for (size_t i = 0; i < calls.size(); ++i) spend(lane, calls[i], static_cast<Wait>(i));
  }

  void add(Lane& lane, double seconds, const char* what, const Action& action) {
    draw(lane, lane.clock + seconds, what,
         plan_.pipeline.stage_of_unit[static_cast<size_t>(action.unit)], action.microbatch);
    lane.clock += seconds;
    lane.time.compute += seconds;
  }

  /// The slot of a gradient may still hold one that is being reduced.
  void open_gradient(Lane& lane, int buffer) {
    if (!lane.reducing) return;
    const std::vector<int>& slots = plan_.slots[lane.group].gradients.slot_of_buffer;
    const int own = slots[static_cast<size_t>(buffer)];
    const int held = slots[static_cast<size_t>(lane.reducing->buffer)];
    if (lane.reducing->buffer == buffer || (own >= 0 && own == held)) finish_reduction(lane);
  }

  /// A unit's output, or its gradient, in a microbatch, to a stage group.
  using Message = std::tuple<int, int, bool, int>;

  void send(Lane& lane, const Action& action) {
    const bool is_gradient = action.kind == ActionKind::SendGradient;
    double seconds = 0;
    for (const SentCall& call : calls_of(lane, action)) seconds += calls_.seconds(lane.rank, call);
    sent_[{action.unit, action.microbatch, is_gradient, action.group}] = {lane.clock, seconds};
    if (!overlaps_) spend(lane, seconds, Wait::Pp);
  }

  /// A message travels when both ends have come to it, and behind those before it.
  void receive(Lane& lane) {
    const auto group = static_cast<int>(lane.group);
    std::set<std::pair<int, bool>> waiting;  ///< links
    for (Receipt& receipt : lane.receipts) {
      const Action& action = receipt.action;
      const bool is_gradient = action.kind == ActionKind::ReceiveGradient;
      if (receipt.arrival >= 0 || waiting.contains({action.group, is_gradient})) continue;
      const auto found = sent_.find({action.unit, action.microbatch, is_gradient, group});
      if (found == sent_.end()) {
        waiting.insert({action.group, is_gradient});
        continue;
      }
      const auto [time, seconds] = found->second;
      double& link = links_[{action.group, group, is_gradient}];
      receipt.arrival = link = std::max({link, time, receipt.posted}) + seconds;
      receipt.seconds = seconds;
      sent_.erase(found);
    }
  }

  void finish(Lane& lane) {
    finish_reduction(lane);
    for (const double end : lane.replicas) wait(lane, end, Wait::Dp);
    for (const SentCall& call :
         calls_before_optimizer(plan_, lane.rank, lane.schedule.has_gradient))
      spend(lane, calls_.seconds(lane.rank, call), wait_of(call.group));
  }

  const Plan& plan_;
  const ReplicaPasses& passes_;
  CallTimes& calls_;
  std::vector<TimelineSpan>* spans_;
  bool overlaps_;
  std::vector<Lane> lanes_;
  std::vector<std::vector<int>> buffers_of_unit_;
  std::map<std::string, int> streams_;
  std::map<Message, std::pair<double, double>> sent_;  ///< when, and the seconds that they travel
  std::map<std::tuple<int, int, bool>, double> links_;
};

}  // namespace

double UnitPass::total() const {
  return kernels.forward + kernels.backward() + sum_of(forward) + sum_of(backward);
}

ReplicaPasses::ReplicaPasses(const Plan& plan, const StepSamples& samples,
                             const DistributedStep& step, UnitTimes& units, CallTimes& calls,
                             const Hardware& hardware)
    : rows_(plan.pipeline.stage_groups.size()) {
  std::vector<MicrobatchTokens> tokens;
  std::vector<std::vector<int64_t>> expert_tokens;
  const std::vector<MicrobatchPlan>& microbatches = step.plan.replicas.front();
  for (size_t m = 0; m < microbatches.size(); ++m) {
    if (m == 0 || microbatches[m].samples != microbatches[m - 1].samples ||
        microbatches[m].expert_tokens != microbatches[m - 1].expert_tokens) {
      tokens.push_back(tokens_of(samples, microbatches[m]));
      expert_tokens.push_back(microbatches[m].expert_tokens);
    }
    kind_of_.push_back(tokens.size() - 1);
  }
  kinds_ = tokens.size();
  passes_.resize(plan.model.units.size() * kinds_);
  std::map<std::vector<int>, Rows> known;
  const int ranks = plan.mesh.ranks_per_replica();
  for (int inside = 0; inside < ranks; ++inside) {
    const int rank = step.replica * ranks + inside, group = plan.group_of(rank);
    const bool is_first = plan.pipeline.stage_groups[group].first_rank == inside;
    if (!is_first && is_repeated(plan, rank)) continue;
    const ReplicaLayout layout = plan.replica_layout(rank);
    Rows& rows = known[rows_key(plan, layout)];
    if (!rows) {
      std::vector<MicrobatchRows> made;
      for (size_t kind = 0; kind < kinds_; ++kind) {
        made.push_back(
            rows_of_microbatch(tokens[kind], plan.model, layout, plan.bidirectional_images));
        made.back().text.experts.replicas = expert_tokens[kind];
      }
      rows = std::make_shared<const std::vector<MicrobatchRows>>(std::move(made));
    }
    RankPasses of_rank(plan, rank, units, calls, hardware.device.overlaps);
    for (size_t kind = 0; kind < kinds_; ++kind, of_rank.forget())
      for (const int stage : plan.pipeline.stage_groups[group].stages)
        for (const int unit : plan.pipeline.stages[stage].units) {
          UnitPass& most = passes_[static_cast<size_t>(unit) * kinds_ + kind];
          const std::string& module = plan.model.units[static_cast<size_t>(unit)].module;
          const UnitPass& own = of_rank.of(unit, (*rows)[kind].of(module));
          if (own.total() > most.total()) most = own;
        }
    if (is_first) rows_[static_cast<size_t>(group)] = rows;
  }
}

ReplicaTimes replica_times(const Plan& plan, const DistributedStep& step,
                           const ReplicaPasses& passes, CallTimes& calls, const Hardware& hardware,
                           std::vector<TimelineSpan>* spans) {
  return Timeline(plan, step, passes, calls, hardware, spans).run();
}

double least_seconds(const Plan& plan, const DistributedStep& step, const ReplicaPasses& passes) {
  const bool trains = plan.options.run.mode == RunMode::Train;
  const std::vector<bool> gradients = plan.model.units_with_gradient();
  std::vector<UnitCost> cheapest(plan.model.units.size());
  std::vector<double> busy(plan.pipeline.stage_groups.size());
  int microbatches = 0;
  for (const MicrobatchPlan& part : step.plan.replicas.front()) {
    if (!part.kind().has_samples) break;  // so are those behind it
    for (size_t u = 0; u < cheapest.size(); ++u) {
      const int unit = static_cast<int>(u);
      if (trains && plan.model.is_cached(unit)) continue;
      const UnitPass& pass = passes.of(unit, microbatches);
      UnitCost cost{.forward = pass.kernels.forward + sum_of(pass.forward)};
      if (trains && gradients[u]) {
        cost.backward_input = pass.kernels.backward_input + sum_of(pass.backward);
        cost.backward_weight = pass.kernels.backward_weight;
        cost.backward_input += pass.kernels.again(plan.recomputed[u]);
        if (plan.recomputes(unit)) cost.backward_input += sum_of(pass.forward);
      }
      busy[static_cast<size_t>(plan.pipeline.group_of_unit(unit))] += cost.total();
      if (microbatches == 0 || cost.total() < cheapest[u].total()) cheapest[u] = cost;
    }
    ++microbatches;
  }
  const double busiest = std::ranges::max(busy);
  if (plan.pipeline.is_one_group() || microbatches == 0) return busiest;
  const std::vector<std::vector<Pass>> order =
      passes_of_groups(plan.pipeline, plan.model, microbatches, !trains);
  return std::max(busiest, simulate(plan.pipeline, plan.model, cheapest, order, 0).makespan);
}

}  // namespace zea::detail
