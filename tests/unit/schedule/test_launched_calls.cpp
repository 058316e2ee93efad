// SPDX-License-Identifier: Apache-2.0
// Calls of NCCL begin in the order of their launches: the steps of every pipeline of the table get
// to their ends, and an order that cannot is found.
#include "support/launched_calls.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <numeric>

#include "support/pipeline_table.hpp"

namespace zea::testing::test_launched_calls {
namespace {

ActionLists lists_of(const Plan& plan, const StepPlan& step, bool forward_only) {
  ActionLists lists;
  for (int rank = 0; rank < plan.world_size(); ++rank)
    lists.push_back(plan.rank_step(step, rank, forward_only).schedule.actions);
  return lists;
}

StepPlan step_of(const PipelineLayout& layout, const Plan& plan) {
  const std::vector<int> images = images_of(layout), clips = clips_of(layout);
  std::vector<SampleIndex> index(static_cast<size_t>(plan.options.schedule.global_batch));
  for (size_t i = 0; i < index.size(); ++i) {
    index[i] = {static_cast<int64_t>(6 + i % 5), {}, 1};
    for (size_t e = 0; e < plan.model.encoders.size(); ++e) {
      const auto& counts = plan.model.encoders[e].modality() == Modality::Image ? images : clips;
      const int count = counts[i % counts.size()];
      index[i].items.add(static_cast<int>(e), count);
      index[i].tokens += 4 * count;
    }
  }
  std::vector<int64_t> ids(index.size());
  std::iota(ids.begin(), ids.end(), 0);
  return plan.step_plan(0, ids, index);
}

Plan plan_of(const PipelineLayout& layout, const Options& deck) {
  ModelSpec model = make_model_spec(config_of(layout));
  remake(layout, model);
  return make_plan(deck, model, config_of(layout), layout.ranks());
}

void expect_end(const PipelineLayout& layout, const Options& deck) {
  const Plan plan = plan_of(layout, deck);
  const StepPlan step = step_of(layout, plan);
  for (const bool forward_only : {false, true})
    EXPECT_EQ(launch_deadlock(plan, lists_of(plan, step, forward_only)), "")
        << layout.name() << ", " << deck.schedule.global_batch << " samples"
        << (forward_only ? ", evaluation" : "");
}

TEST(LaunchedCalls, OfEveryPipelineEnd) {
  for (const PipelineLayout& layout : pipelines()) expect_end(layout, deck_of(layout));
}

/// On devices these alone may have such outputs (check_message_order).
TEST(LaunchedCalls, OfOutputsThatSkipStagesEnd) {
  for (PipelineLayout layout : pipelines())
    if (layout.model == PipelineModel::Gemma4)
      for (const auto& [schedule, pp] :
           {std::pair("gpipe", 3), {"gpipe", 8}, {"1f1b", 3}, {"1f1b", 4}})
        for (const int64_t samples : {1, 2, 3, 7, 16}) {
          layout.schedule = schedule;
          layout.llm = {pp};
          layout.vision.tp = layout.vision.cp = 1;
          layout.audio = {};
          Options deck = deck_of(layout);
          deck.schedule.global_batch = samples * layout.replicas();
          deck.data.packing = false;
          expect_end(layout, deck);
        }
}

TEST(LaunchedCalls, OfGemma4E4bEndInFewStages) {
  std::ifstream file(ZEA_INPUTS "/gemma4_e4b.json");
  const std::string config{std::istreambuf_iterator<char>(file), {}};
  const auto ends = [&](const char* schedule, int pp, int64_t samples) {
    Options deck;
    deck.mesh.schedule = std::string(schedule);
    deck.meshes["llm"].pp = pp;
    deck.schedule.global_batch = samples;
    deck.data.packing = false;
    const Plan plan = make_plan(deck, make_model_spec(config), config, pp);
    const ActionLists lists = lists_of(plan, step_of(pipelines()[0], plan), false);
    return launch_deadlock(plan, lists).empty();
  };
  for (const int64_t samples : {1, 3, 6, 24}) {
    for (const int pp : {3, 4}) EXPECT_TRUE(ends("1f1b", pp, samples)) << pp << ", " << samples;
    for (const int pp : {3, 8}) EXPECT_TRUE(ends("gpipe", pp, samples)) << pp << ", " << samples;
  }
  EXPECT_FALSE(ends("1f1b", 6, 24));
  EXPECT_FALSE(ends("zero_bubble", 8, 24));
}

/// An allocator without free memory waits for the device. Two ranks of a pipeline can then wait for
/// each other, because each has posted a receive one pass ahead; therefore reserve_for_steps()
/// reserves the memory of steps. Without stages all ranks launch the same calls in one order.
TEST(LaunchedCalls, DeadlockOnlyInPipelinesWhenHostsWaitForMemory) {
  int waiting = 0, tried = 0;
  for (const PipelineLayout& layout : pipelines()) {
    const Plan plan = plan_of(layout, deck_of(layout));
    const ActionLists lists = lists_of(plan, step_of(layout, plan), false);
    if (plan.pipeline.is_one_group())
      EXPECT_EQ(launch_deadlock(plan, lists, HostWaits::ForMemory), "") << layout.name();
    else if (++tried; !launch_deadlock(plan, lists, HostWaits::ForMemory).empty())
      ++waiting;
  }
  std::printf("%d of %d pipelines wait for ever\n", waiting, tried);
  EXPECT_GT(waiting, 0);
}

bool is_message(const Action& action) {
  return action.group >= 0;
}

/// Whether a computation makes what is sent, or reads what is received.
bool handles(const Plan& plan, const Action& compute, const Action& message) {
  if (compute.unit < 0 || is_message(compute) || compute.microbatch != message.microbatch ||
      compute.kind == ActionKind::BackwardWeight)
    return false;
  const bool is_forward = compute.kind == ActionKind::Forward;
  const bool is_back =
      message.kind == ActionKind::SendGradient || message.kind == ActionKind::ReceiveGradient;
  if (is_forward == is_back) return false;
  if (message.kind == ActionKind::Send || message.kind == ActionKind::ReceiveGradient)
    return compute.unit == message.unit;
  return std::ranges::any_of(plan.model.units[static_cast<size_t>(compute.unit)].inputs,
                             [&](const UnitInput& input) { return input.unit == message.unit; });
}

/// With every message a call of its own, beside the computation that makes or reads it.
std::vector<Action> apart(const Plan& plan, const std::vector<Action>& list) {
  std::map<size_t, std::vector<Action>> before, after;
  for (const Action& message : list) {
    if (!is_message(message)) continue;
    std::vector<size_t> handling;
    for (size_t i = 0; i < list.size(); ++i)
      if (handles(plan, list[i], message)) handling.push_back(i);
    const bool is_sent =
        message.kind == ActionKind::Send || message.kind == ActionKind::SendGradient;
    auto& there = is_sent ? after[handling.back()] : before[handling.front()];
    there.push_back(message);
    there.push_back({ActionKind::Reshard});  // of nothing: what follows is another call
  }
  std::vector<Action> placed;
  for (size_t i = 0; i < list.size(); ++i) {
    if (is_message(list[i])) continue;
    placed.insert(placed.end(), before[i].begin(), before[i].end());
    placed.push_back(list[i]);
    placed.insert(placed.end(), after[i].begin(), after[i].end());
  }
  return placed;
}

/// The second message of a pass follows the first in its stream, and what is launched behind it
/// waits, too.
TEST(LaunchedCalls, WithEveryMessageApartWaitInACircle) {
  const auto layout = std::ranges::find_if(pipelines(), [](const PipelineLayout& one) {
    return one.twist == Twist::TwoOfImages && std::string(one.schedule) == "zero_bubble";
  });
  ASSERT_NE(layout, pipelines().end());
  const Plan plan = plan_of(*layout, deck_of(*layout));
  ActionLists lists = lists_of(plan, step_of(*layout, plan), false);
  for (std::vector<Action>& list : lists) list = apart(plan, list);
  const std::string found = launch_deadlock(plan, lists);
  EXPECT_NE(
      found.find("rank 0 waits for forward llm.embed microbatch 1 to begin, behind send "
                 "detail.projector microbatch 1, behind send vision.projector microbatch 1\n"),
      std::string::npos)
      << found;
  EXPECT_NE(found.find("rank 2 waits for receive vision.projector microbatch 1"), std::string::npos)
      << found;
}

}  // namespace
}  // namespace zea::testing::test_launched_calls
