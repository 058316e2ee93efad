// SPDX-License-Identifier: Apache-2.0
// Messages of one link have no names: both of its ends must have them in one order. They have where
// a stage sends to the next one; outputs that later stages read as well may come out of order where
// a stage group has several stages.
#include <algorithm>
#include <map>
#include <tuple>

#include "schedule/plan_parts.hpp"
#include "schedule/schedule_trace.hpp"

namespace zea::detail {
namespace {

/// Units with their microbatches, in the order in which they are sent and received.
struct LinkMessages {
  std::vector<std::pair<int, int>> sent, received;
};
/// By the stage groups that send and receive, and whether gradients are sent.
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

bool skips_stages(const ModelSpec& model) {
  const auto reads_more = [](const UnitInput& input) { return input.reads != UnitReads::Rows; };
  return std::ranges::any_of(model.units, [&](const UnitSpec& unit) {
    return std::ranges::any_of(unit.inputs, reads_more);
  });
}

}  // namespace

void check_message_order(Faults& faults, const Options& options, const ScheduleParts& parts) {
  const Pipeline& pipeline = parts.pipeline;
  if (pipeline.is_one_group() || !skips_stages(parts.model)) return;
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
               " with pp = " + std::to_string(pipeline.stage_groups.size()) +
               ": what the blocks of " + parts.model.family + " read of earlier ones would reach " +
               pipeline.stage_groups[to].name + " from " + pipeline.stage_groups[from].name +
               " in another order than it is sent; use virtual_stages = 1, or another pp");
    return;
  }
}

}  // namespace zea::detail
