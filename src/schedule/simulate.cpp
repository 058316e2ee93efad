// SPDX-License-Identifier: Apache-2.0
// Every stage group advances through its passes as far as it can, over and over, until all are done
// or none moves. A stage group that begins a pass requests the inputs of the next one; when it ends
// a pass, it offers the outputs. The k-th offer of a channel meets the k-th request, and a message
// is sent if both are about the same. The result does not depend on the order in which stage groups
// are visited, so times are those of stage groups that run side by side.
#include "schedule/simulate.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "core/error.hpp"
#include "schedule/pipeline.hpp"

namespace zea {
namespace {

/// A message of some stage, whatever the microbatch: with which stage group.
struct Exchange {
  int unit;
  int group;
};

/// The messages of a stage to other stage groups, and its readers in its own.
struct StageTraffic {
  std::vector<Exchange> inputs, outputs;              ///< forward: to ask for, to offer
  std::vector<Exchange> gradients_in, gradients_out;  ///< backward
  std::vector<int> readers;  ///< stages of the same stage group that read its outputs
};

std::vector<StageTraffic> make_stage_traffic(const Pipeline& pipeline, const ModelSpec& model) {
  std::vector<StageTraffic> traffic(pipeline.stages.size());
  for (size_t u = 0; u < model.units.size(); ++u) {
    const int stage = pipeline.stage_of_unit[u];
    for (const UnitInput& input : model.units[u].inputs) {
      const int source = pipeline.stage_of_unit[input.unit];
      if (source != stage && pipeline.stages[source].group == pipeline.stages[stage].group)
        traffic[source].readers.push_back(stage);
    }
  }
  const std::vector<bool> has_gradient = model.units_with_gradient();
  for (const PipelineEdge& edge : edges_of(pipeline, model)) {
    const int first = pipeline.stage_of_unit[edge.receiver];
    const int source = pipeline.stage_of_unit[edge.unit];
    traffic[source].outputs.push_back({edge.unit, edge.to});
    traffic[first].inputs.push_back({edge.unit, edge.from});
    if (!has_gradient[edge.unit]) continue;
    // Backward walks the other way: from the last unit to the first.
    auto& in = traffic[source].gradients_in;
    auto& out = traffic[first].gradients_out;
    in.insert(in.begin(), {edge.unit, edge.to});
    out.insert(out.begin(), {edge.unit, edge.from});
  }
  return traffic;
}

/// A unit's output, or the gradient of it, in one microbatch.
struct Message {
  int unit;
  int microbatch;
  bool is_gradient;

  auto operator<=>(const Message&) const = default;
};

struct Posted {
  Message message;
  double time;
};

/// From one stage group to another.
struct Channel {
  std::vector<Posted> offers, questions;
  std::vector<double> arrivals;
};

const char* kind_name(PassKind kind) {
  constexpr const char* kNames[] = {"forward", "backward", "input gradients", "weight gradients"};
  return kNames[static_cast<int>(kind)];
}

bool is_backward(const Pass& pass) {
  return pass.kind == PassKind::Backward || pass.kind == PassKind::BackwardInput;
}

constexpr size_t kPassKinds = 4;
using StageDurations = std::array<double, kPassKinds>;  ///< of each PassKind

std::vector<StageDurations> durations_of(const Pipeline& pipeline,
                                         const std::vector<UnitCost>& costs) {
  std::vector<StageDurations> durations;
  for (const PipelineStage& stage : pipeline.stages) {
    StageDurations& of_stage = durations.emplace_back();
    for (const int unit : stage.units) {
      const UnitCost& cost = costs[unit];
      of_stage[static_cast<size_t>(PassKind::Forward)] += cost.forward;
      of_stage[static_cast<size_t>(PassKind::Backward)] += cost.backward();
      of_stage[static_cast<size_t>(PassKind::BackwardInput)] += cost.backward_input;
      of_stage[static_cast<size_t>(PassKind::BackwardWeight)] += cost.backward_weight;
    }
  }
  return durations;
}

class Simulator {
 public:
  Simulator(const Pipeline& pipeline, const ModelSpec& model, const std::vector<UnitCost>& costs,
            const std::vector<std::vector<Pass>>& passes, double transfer)
      : pipeline_(pipeline),
        model_(model),
        passes_(passes),
        transfer_(transfer),
        durations_(durations_of(pipeline, costs)),
        traffic_(make_stage_traffic(pipeline, model)),
        clocks_(passes.size(), 0) {
    result_.groups.resize(passes.size());
    for (const auto& group : passes)
      for (const Pass& pass : group)
        microbatches_ = std::max(microbatches_, static_cast<size_t>(pass.microbatch) + 1);
    done_.resize(kPassKinds * pipeline.stages.size() * microbatches_);
    for (size_t p = 0; p < passes.size(); ++p) ask(static_cast<int>(p), 0);
  }

  Simulation run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t p = 0; p < passes_.size(); ++p)
        while (advance(static_cast<int>(p))) moved = true;
    }
    for (const auto& group : result_.groups)
      if (!group.empty()) result_.makespan = std::max(result_.makespan, group.back().end);
    result_.deadlock = describe_deadlock();
    return std::move(result_);
  }

 private:
  using Exchanges = std::vector<Exchange>;

  /// The pass that `group` has come to; null: it is done.
  const Pass* next(int group) const {
    const size_t done = result_.groups[group].size();
    return done < passes_[group].size() ? &passes_[group][done] : nullptr;
  }
  Channel& channel(int from, int to) { return channels_[{from, to}]; }

  const Exchanges& reads(const Pass& pass) const {
    static const Exchanges kNone;
    if (pass.kind == PassKind::Forward) return traffic_[pass.stage].inputs;
    return is_backward(pass) ? traffic_[pass.stage].gradients_in : kNone;
  }
  const Exchanges& makes(const Pass& pass) const {
    static const Exchanges kNone;
    if (pass.kind == PassKind::Forward) return traffic_[pass.stage].outputs;
    return is_backward(pass) ? traffic_[pass.stage].gradients_out : kNone;
  }

  bool advance(int group) {
    const Pass* pass = next(group);
    if (pass == nullptr) return false;
    if (!missing_here(group, *pass).empty()) return false;
    double begin = clocks_[group];
    for (const Exchange& read : reads(*pass)) {
      const double arrival = arrival_of(group, *pass, read);
      if (arrival < 0) return false;
      begin = std::max(begin, arrival);
    }
    finish(group, *pass, begin);
    return true;
  }

  void ask(int group, double time) {
    const Pass* pass = next(group);
    if (pass == nullptr) return;
    for (const Exchange& read : reads(*pass))
      channel(read.group, group).questions.push_back({message_of(*pass, read), time});
  }

  void finish(int group, const Pass& pass, double begin) {
    const double end = begin + duration(pass);
    result_.groups[group].push_back({pass, begin, end});
    clocks_[group] = end;
    ask(group, begin);
    done_[index_of(pass)] = true;
    for (const Exchange& made : makes(pass))
      channel(group, made.group).offers.push_back({message_of(pass, made), end});
  }

  static Message message_of(const Pass& pass, const Exchange& exchange) {
    return {exchange.unit, pass.microbatch, pass.kind != PassKind::Forward};
  }

  /// When what a pass reads has come; -1: it has not. What comes before it in its channel has to
  /// travel first.
  double arrival_of(int group, const Pass& pass, const Exchange& read) {
    Channel& from = channel(read.group, group);
    while (from.arrivals.size() < std::min(from.offers.size(), from.questions.size())) {
      const Posted& offer = from.offers[from.arrivals.size()];
      const Posted& question = from.questions[from.arrivals.size()];
      if (offer.message != question.message) return -1;
      const double free = from.arrivals.empty() ? 0 : from.arrivals.back();
      from.arrivals.push_back(std::max({offer.time, question.time, free}) + transfer_);
    }
    // A pass asked for its inputs last.
    const Message wanted = message_of(pass, read);
    for (size_t i = from.questions.size(); i-- > 0;)
      if (from.questions[i].message == wanted)
        return i < from.arrivals.size() ? from.arrivals[i] : -1;
    return -1;
  }

  size_t index_of(const Pass& pass) const {
    return (static_cast<size_t>(pass.kind) * pipeline_.stages.size() + pass.stage) * microbatches_ +
           pass.microbatch;
  }
  bool is_done(PassKind kind, int stage, int microbatch) const {
    return done_[index_of({kind, stage, microbatch})];
  }
  bool is_backward_done(int stage, int microbatch) const {
    return is_done(PassKind::Backward, stage, microbatch) ||
           is_done(PassKind::BackwardInput, stage, microbatch);
  }

  /// The work that the stage group itself has to do before this pass, and has not done; empty:
  /// nothing.
  std::string missing_here(int group, const Pass& pass) const {
    const auto forward = [&](int stage) {
      return is_done(PassKind::Forward, stage, pass.microbatch);
    };
    const std::string own = " of stage " + std::to_string(pass.stage);
    if (pass.kind == PassKind::BackwardWeight)
      return is_backward_done(pass.stage, pass.microbatch) ? "" : "the input gradients" + own;
    if (is_backward(pass)) {
      if (!forward(pass.stage)) return "the forward" + own;
      for (int reader : traffic_[pass.stage].readers)
        if (!is_backward_done(reader, pass.microbatch))
          return "the backward of stage " + std::to_string(reader);
      return "";
    }
    for (int stage : pipeline_.stage_groups[group].stages) {
      const std::vector<int>& readers = traffic_[stage].readers;
      if (std::find(readers.begin(), readers.end(), pass.stage) != readers.end() && !forward(stage))
        return "the forward of stage " + std::to_string(stage);
    }
    return "";
  }

  double duration(const Pass& pass) const {
    return durations_[pass.stage][static_cast<size_t>(pass.kind)];
  }

  std::string describe(const Message& message) const {
    return std::string(message.is_gradient ? "the gradient of " : "the output of ") +
           model_.units[message.unit].name + " in microbatch " + std::to_string(message.microbatch);
  }

  std::string describe_deadlock() {
    std::string text;
    for (size_t p = 0; p < passes_.size(); ++p) {
      const int group = static_cast<int>(p);
      const Pass* pass = next(group);
      if (pass == nullptr) continue;
      text += std::string(text.empty() ? "" : "\n") + "group " + std::to_string(group) +
              " has come to the " + kind_name(pass->kind) + " of stage " +
              std::to_string(pass->stage) + " in microbatch " + std::to_string(pass->microbatch) +
              " and waits for " + awaited(group, *pass);
    }
    return text;
  }

  std::string awaited(int group, const Pass& pass) {
    const std::string own = missing_here(group, pass);
    if (!own.empty()) return own + ", which comes later in its own order";
    for (const Exchange& read : reads(pass)) {
      if (arrival_of(group, pass, read) >= 0) continue;
      const Channel& from = channel(read.group, group);
      std::string text =
          describe(message_of(pass, read)) + " from group " + std::to_string(read.group);
      const size_t head = from.arrivals.size();
      if (head < from.offers.size() && head < from.questions.size())
        text += ", but the next that group " + std::to_string(read.group) + " sends it is " +
                describe(from.offers[head].message);
      return text;
    }
    throw InternalError("a group of the pipeline waits for nothing");
  }

  const Pipeline& pipeline_;
  const ModelSpec& model_;
  const std::vector<std::vector<Pass>>& passes_;
  double transfer_;
  const std::vector<StageDurations> durations_;  ///< of each stage
  std::vector<StageTraffic> traffic_;            ///< of each stage
  std::vector<double> clocks_;  ///< of each stage group: when it came to its next pass
  std::map<std::pair<int, int>, Channel> channels_;
  size_t microbatches_ = 0;
  std::vector<bool> done_;  ///< by kind, stage and microbatch
  Simulation result_;
};

}  // namespace

double Simulation::bubble() const {
  if (makespan <= 0) return 0;
  double busy = 0;
  for (const auto& group : groups)
    for (const TimedPass& timed : group) busy += timed.end - timed.begin;
  return 1 - busy / (makespan * static_cast<double>(groups.size()));
}

Simulation simulate(const Pipeline& pipeline, const ModelSpec& model,
                    const std::vector<UnitCost>& costs,
                    const std::vector<std::vector<Pass>>& passes, double transfer) {
  return Simulator(pipeline, model, costs, passes, transfer).run();
}

Simulation simulate(const Pipeline& pipeline, const ModelSpec& model,
                    const std::vector<UnitCost>& costs, int microbatches, double transfer) {
  return simulate(pipeline, model, costs, passes_of_groups(pipeline, model, microbatches, false),
                  transfer);
}

}  // namespace zea
