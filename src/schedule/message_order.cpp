// SPDX-License-Identifier: Apache-2.0
// Checks the order of messages between stage groups. Messages carry no tags, so the sender and the
// receiver of a link must order them alike. Messages to the next stage are always in order. Outputs
// that skip stages may be out of order if a stage group has several stages (virtual stages), and on
// devices their NCCL calls may deadlock unless the schedule is GPipe, or 1F1B with few stages.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "schedule/plan_parts.hpp"
#include "schedule/schedule_trace.hpp"

namespace zea::detail {
namespace {

/// The messages of a link, as pairs of unit and microbatch, in the order of sender and of receiver.
struct LinkMessages {
  std::vector<std::pair<int, int>> sent, received;
};
/// The key: sending stage group, receiving stage group, and whether the messages are gradients.
using AllMessages = std::map<std::tuple<int, int, bool>, LinkMessages>;

void add_messages(AllMessages& all, const ScheduleInput& input) {
  for (const ScheduleTrace::Transfers& pass : ScheduleTrace(input).transfers()) {
    for (const Action& action : pass.receives)
      all[{action.group, input.group, action.kind == ActionKind::ReceiveGradient}]
          .received.emplace_back(action.unit, action.microbatch);
    for (const auto& [compute, actions] : pass.sends_after)
      for (const Action& action : actions)
        all[{input.group, action.group, action.kind == ActionKind::SendGradient}].sent.emplace_back(
            action.unit, action.microbatch);
  }
}

/// Pairs of stage groups: the first sends outputs to the second.
using Links = std::set<std::pair<int, int>>;

/// Returns the links of the residual path (UnitReads::Rows), or of the `other` inputs of blocks.
Links links_of(const Pipeline& pipeline, const ModelSpec& model, bool other) {
  Links links;
  for (size_t u = 0; u < model.units.size(); ++u)
    for (const UnitInput& input : model.units[u].inputs) {
      const int from = pipeline.group_of_unit(input.unit);
      const int to = pipeline.group_of_unit(static_cast<int>(u));
      if (from != to && (input.reads != UnitReads::Rows) == other) links.insert({from, to});
    }
  return links;
}

/// The number of stage groups that hold a unit of the language model.
size_t stage_groups_of_decoder(const Pipeline& pipeline, const ModelSpec& model) {
  std::set<int> groups;
  for (size_t unit = 0; unit < model.units.size(); ++unit)
    if (model.units[unit].module == kDecoder)
      groups.insert(pipeline.group_of_unit(static_cast<int>(unit)));
  return groups.size();
}

/// Whether the NCCL calls of outputs that skip stages are free of deadlock on devices. In 1F1B with
/// more stages the first stage is so far ahead of the last that their calls wait for each other
/// (test_launched_calls).
constexpr size_t kMostSkipping = 4;
bool may_skip_on_devices(PipelineSchedule schedule, size_t pp) {
  return schedule == PipelineSchedule::GPipe ||
         (schedule == PipelineSchedule::OneFOneB && pp <= kMostSkipping);
}

}  // namespace

void check_message_order(Faults& faults, const Options& options, const ScheduleParts& parts) {
  const Pipeline& pipeline = parts.pipeline;
  const Links links = links_of(pipeline, parts.model, true);
  if (links.empty()) return;
  const size_t pp = stage_groups_of_decoder(pipeline, parts.model);
  if (options.run.device != DeviceKind::Cpu && !may_skip_on_devices(options.mesh.schedule, pp) &&
      !std::ranges::includes(links_of(pipeline, parts.model, false), links)) {
    // A stage group would wait for its message to be received, which the receiver launches only
    // after a message that it expects from this stage group.
    faults.add("run.device = \"" + options.run.device + "\" with mesh." + kDecoder +
               ".pp = " + std::to_string(pp) + " and mesh.schedule = \"" + options.mesh.schedule +
               "\": blocks of " + parts.model.family +
               " read outputs of stages before the one before theirs, for which NCCL's order of "
               "launches could let stage groups wait in a cycle; use \"gpipe\", \"1f1b\" with "
               "pp up to " +
               std::to_string(kMostSkipping) + ", pp = 2, or tp and full_shard");
    return;
  }
  MicrobatchPlan one{.samples = {0}, .rows = 1, .tokens = 1, .targets = 1, .items = {}};
  for (int encoder = 0; encoder < std::ssize(parts.model.encoders); ++encoder)
    one.items.add(encoder, 1);
  const std::vector<MicrobatchPlan> busy(2 * pipeline.stage_groups.size(), one);
  const std::vector<MicrobatchKinds> kinds(busy.size(), {busy[0].kind()});
  ScheduleInput input{parts, busy, kinds, kinds};
  AllMessages all;
  for (size_t group = 0; group < pipeline.stage_groups.size(); ++group) {
    input.group = static_cast<int>(group);
    add_messages(all, input);
  }
  for (const auto& [link, messages] : all) {
    if (messages.sent == messages.received) continue;
    const auto& [from, to, back] = link;
    faults.add("mesh." + kDecoder +
               ".virtual_stages = " + std::to_string(options.meshes[kDecoder].virtual_stages) +
               " with pp = " + std::to_string(pp) + ": what the blocks of " + parts.model.family +
               " read of earlier ones would reach " + pipeline.stage_groups[to].name + " from " +
               pipeline.stage_groups[from].name +
               " in another order than it is sent; use virtual_stages = 1, or another pp");
    return;
  }
}

}  // namespace zea::detail
