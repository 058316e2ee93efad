// SPDX-License-Identifier: Apache-2.0
// Schedules on paper: every rank's list is simulated side by side. Collectives match over each
// group, buffers are gathered when a unit needs them, and each gradient is reduced after its last
// backward.
#include "schedule/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "schedule/plan.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_schedule {
namespace {

using testing::tiny_llava_config;

struct Case {
  int ranks;
  int dp_replicate;
  const char *vision, *llm;
  bool tied, train_vision, train_llm;
  std::vector<SampleIndex> index;
};

Plan plan_of(const Case& c) {
  Options options;
  options.mesh.dp_replicate = c.dp_replicate;
  options.meshes["vision"].strategy = c.vision;
  options.meshes["llm"].strategy = c.llm;
  options.encoders["vision"].train = c.train_vision;
  options.llm.train = c.train_llm;
  options.data.row_tokens = 30;
  return make_plan(options, tiny_llava_config({.tied = c.tied}), c.ranks);
}

std::vector<Case> cases() {
  std::vector<std::vector<SampleIndex>> batches{
      {{20, 1, 3}, {10, 0, 3}, {25, 2, 3}, {5, 0, 1}, {30, 0, 9}},
      {{10, 0, 3}, {10, 0, 3}},
      {{30, 1, 3}},
  };
  std::vector<Case> all;
  for (const auto& index : batches)
    for (int ranks : {1, 2, 3, 4})
      for (const char* vision : {"no_shard", "hybrid_shard"})
        for (const char* llm : {"no_shard", "hybrid_shard"})
          for (bool tied : {false, true})
            for (bool train_llm : {false, true})
              for (int replicate : {1, 2})
                if (ranks % replicate == 0)
                  all.push_back({ranks, replicate, vision, llm, tied, !tied, train_llm, index});
  return all;
}

std::vector<Action> actions_of(const Plan& plan, const StepPlan& step, int rank) {
  return plan.rank_step(step, rank, false).schedule.actions;
}

StepPlan step_of(const Plan& plan, const Case& c) {
  std::vector<int64_t> ids(c.index.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  return plan.step_plan(0, ids, c.index);
}

TEST(Schedule, UnitsRunOnGatheredBuffersAndAtMostTwoAreGathered) {
  for (const Case& c : cases()) {
    const Plan plan = plan_of(c);
    const StepPlan step = step_of(plan, c);
    const auto unit_buffers = buffers_of_units(plan.model, plan.buffers);
    for (int rank = 0; rank < c.ranks; ++rank) {
      std::set<int> gathered;
      for (const Action& action : actions_of(plan, step, rank)) {
        if (action.kind == ActionKind::Unshard) {
          EXPECT_TRUE(gathered.insert(action.buffer).second);
        }
        if (action.kind == ActionKind::Reshard) {
          EXPECT_EQ(gathered.erase(action.buffer), 1);
        }
        std::set<std::string> units;
        for (int buffer : gathered) units.insert(plan.buffers[buffer].name);
        EXPECT_LE(units.size(), c.tied ? 4u : 2u);
        if (action.unit < 0) continue;
        for (int buffer : unit_buffers[action.unit])
          EXPECT_TRUE(!plan.shardings[buffer].gathered() || gathered.contains(buffer));
      }
      EXPECT_TRUE(gathered.empty());
    }
  }
}

TEST(Schedule, EveryGradientIsReducedAfterItsLastBackward) {
  for (const Case& c : cases()) {
    const Plan plan = plan_of(c);
    const StepPlan step = step_of(plan, c);
    const auto unit_buffers = buffers_of_units(plan.model, plan.buffers);
    for (int rank = 0; rank < c.ranks; ++rank) {
      const auto actions = actions_of(plan, step, rank);
      const auto stepped = plan.rank_step(step, rank, false).schedule.has_gradient;
      for (size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
        int open = 0, replicas = 0;
        for (const Action& action : actions) {
          const bool uses =
              action.kind == ActionKind::Backward &&
              std::ranges::find(unit_buffers[action.unit], static_cast<int>(buffer)) !=
                  unit_buffers[action.unit].end();
          if (uses) {
            EXPECT_EQ(replicas, 0) << "backward after the last reduction";
            ++open;
          }
          if (action.buffer != static_cast<int>(buffer)) continue;
          if (action.kind == ActionKind::ReduceShard) open = 0;
          if (action.kind == ActionKind::ReduceReplicas) ++replicas;
        }
        const Sharding& sharding = plan.shardings[buffer];
        if (!plan.buffers[buffer].trainable) {
          EXPECT_EQ(replicas, 0);
          continue;
        }
        if (sharding.gathered()) {
          EXPECT_EQ(open, 0) << plan.buffers[buffer].name;
        }
        EXPECT_EQ(replicas, stepped[buffer] && sharding.replicas > 1 ? 1 : 0)
            << plan.buffers[buffer].name;
      }
    }
  }
}

TEST(Schedule, OtherReplicasAreKnownByTheKindsOfTheirMicrobatchesAlone) {
  for (const Case& c : cases()) {
    const Plan plan = plan_of(c);
    const StepPlan step = step_of(plan, c);
    for (int rank = 0; rank < c.ranks; ++rank) {
      StepPlan own_alone = step;
      for (int replica = 0; replica < plan.mesh.replicas(); ++replica)
        if (replica != plan.replica_of(rank)) own_alone.replicas[replica].clear();
      const Schedule all = plan.rank_step(step, rank).schedule;
      const Schedule alone = plan.rank_step(own_alone, rank).schedule;
      EXPECT_EQ(alone.actions, all.actions);
      EXPECT_EQ(alone.has_gradient, all.has_gradient);
    }
  }
}

TEST(Schedule, AModuleWithoutItemsDoesNothing) {
  const Case c{2, 1, "full_shard", "full_shard", false, true, true, {{10, 0, 3}, {10, 0, 3}}};
  const Plan plan = plan_of(c);
  const StepPlan step = step_of(plan, c);
  for (const Action& action : actions_of(plan, step, 0)) {
    const std::string& module = action.unit >= 0 ? plan.model.units[action.unit].module
                                                 : plan.buffers[action.buffer].module;
    EXPECT_EQ(module, "llm");
  }
  const auto stepped = plan.rank_step(step, 0, false).schedule.has_gradient;
  for (size_t buffer = 0; buffer < plan.buffers.size(); ++buffer)
    EXPECT_EQ(stepped[buffer],
              plan.buffers[buffer].module == "llm" && plan.buffers[buffer].trainable);
}

TEST(Schedule, GathersTheNextUnitBeforeThisOneRuns) {
  const Case c{2, 1, "full_shard", "full_shard", false, true, true, {{10, 1, 3}, {10, 1, 3}}};
  const Plan plan = plan_of(c);
  const auto actions = actions_of(plan, step_of(plan, c), 0);
  std::vector<std::string> head;
  for (size_t i = 0; i < 5; ++i) head.push_back(describe(actions[i], plan.model, plan.buffers));
  EXPECT_EQ(head, (std::vector<std::string>{
                      "unshard vision.embed microbatch 0", "unshard vision.layers.0 microbatch 0",
                      "forward vision.embed microbatch 0", "reshard vision.embed microbatch 0",
                      "unshard vision.layers.1 microbatch 0"}));
}

/// The actions of rank 0 with these options for both modules, as text, without the computations'
/// microbatch.
std::vector<std::string> actions_with(void (*refine)(ModuleMeshOptions&), int microbatches = 1) {
  Options options;
  options.data.packing = false;
  refine(options.meshes["vision"]);
  refine(options.meshes["llm"]);
  const Plan plan = make_plan(options, tiny_llava_config(), 4);
  const std::vector<SampleIndex> index(4 * microbatches, SampleIndex{10, 1, 3});
  std::vector<int64_t> ids(index.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  std::vector<std::string> text;
  for (const Action& action : actions_of(plan, plan.step_plan(0, ids, index), 0)) {
    const std::string line = describe(action, plan.model, plan.buffers);
    text.push_back(microbatches == 1 ? line.substr(0, line.find(" microbatch")) : line);
  }
  return text;
}

using Lines = std::vector<std::string>;

/// Returns `count` lines from the line `first` on.
Lines from(const Lines& all, const std::string& first, size_t count) {
  const auto begin = std::ranges::find(all, first);
  EXPECT_NE(begin, all.end()) << first;
  const auto left = static_cast<size_t>(all.end() - begin);
  return {begin, begin + static_cast<int64_t>(std::min(count, left))};
}

TEST(Schedule, PrefetchNoneGathersWhenItIsNeeded) {
  const Lines actions = actions_with(
      [](ModuleMeshOptions& mesh) { mesh.forward_prefetch = mesh.backward_prefetch = "none"; });
  EXPECT_EQ(from(actions, "unshard llm.layers.0", 4),
            (Lines{"unshard llm.layers.0", "forward llm.layers.0", "reshard llm.layers.0",
                   "unshard llm.layers.1"}));
  EXPECT_EQ(from(actions, "backward llm.layers.1", 4),
            (Lines{"backward llm.layers.1", "reshard llm.layers.1", "reduce_shard llm.layers.1",
                   "unshard llm.layers.0"}));
}

TEST(Schedule, BackwardPrefetchPreGathersBeforeAndPostBesideTheReduction) {
  const Lines pre = actions_with([](ModuleMeshOptions&) {});
  EXPECT_EQ(from(pre, "backward llm.head", 5),
            (Lines{"backward llm.head", "reshard llm.head", "reduce_shard llm.head",
                   "unshard llm.layers.0", "backward llm.layers.1"}));
  const Lines post = actions_with([](ModuleMeshOptions& mesh) { mesh.backward_prefetch = "post"; });
  EXPECT_EQ(from(post, "backward llm.layers.1", 5),
            (Lines{"backward llm.layers.1", "reshard llm.layers.1", "unshard llm.layers.0",
                   "reduce_shard llm.layers.1", "backward llm.layers.0"}));
}

TEST(Schedule, PrefetchDepthGathersSoManyUnitsAhead) {
  const Lines actions = actions_with([](ModuleMeshOptions& mesh) { mesh.prefetch_depth = 2; });
  EXPECT_EQ(from(actions, "unshard vision.embed", 6),
            (Lines{"unshard vision.embed", "unshard vision.layers.0", "unshard vision.layers.1",
                   "forward vision.embed", "reshard vision.embed", "unshard vision.projector"}));
}

TEST(Schedule, ShardGradOpKeepsWhatForwardGathered) {
  const Lines actions =
      actions_with([](ModuleMeshOptions& mesh) { mesh.strategy = "shard_grad_op"; });
  EXPECT_EQ(std::ranges::count(actions, "unshard llm.layers.0"), 1);
  EXPECT_EQ(from(actions, "forward llm.layers.0", 2),
            (Lines{"forward llm.layers.0", "unshard llm.head"}));
  EXPECT_EQ(from(actions, "backward llm.layers.0", 3),
            (Lines{"backward llm.layers.0", "reshard llm.layers.0", "reduce_shard llm.layers.0"}));
}

TEST(Schedule, ASubgroupKeepsParametersBetweenForwardAndBackward) {
  const Lines actions = actions_with(
      [](ModuleMeshOptions& mesh) { mesh.reshard_after_forward = AutoOption::of_count(2); });
  EXPECT_EQ(from(actions, "forward llm.layers.0", 2),
            (Lines{"forward llm.layers.0", "reshard_subgroup llm.layers.0"}));
  EXPECT_EQ(std::ranges::count(actions, "unshard llm.layers.0"), 1);
  EXPECT_EQ(std::ranges::count(actions, "unshard_subgroup llm.layers.0"), 1);
  EXPECT_EQ(from(actions, "backward llm.layers.0", 2),
            (Lines{"backward llm.layers.0", "reshard llm.layers.0"}));
  EXPECT_EQ(std::ranges::count(actions, "reshard_subgroup llm.head"), 0)
      << "its backward follows at once";
}

TEST(Schedule, WrappedUnitsAreGatheredAndReducedAsOne) {
  const Lines actions = actions_with([](ModuleMeshOptions& mesh) { mesh.wrap_units = 0; });
  const std::string llm = "llm.embed..llm.head", vision = "vision.embed..vision.projector";
  EXPECT_EQ(std::ranges::count(actions, "unshard " + llm), 1);
  EXPECT_EQ(std::ranges::count(actions, "reduce_shard " + llm), 1);
  EXPECT_EQ(std::ranges::count(actions, "unshard " + vision), 2);
  EXPECT_EQ(actions.back(), "reduce_shard " + vision);
}

TEST(Schedule, WithoutSyncGradientsAreReducedAfterTheLastMicrobatch) {
  const Lines actions = actions_with(
      [](ModuleMeshOptions& mesh) { mesh.sync_grad_accum = AutoOption::of(false); }, 3);
  for (const std::string& line : actions)
    if (line.starts_with("reduce")) {
      EXPECT_TRUE(line.ends_with("microbatch 2")) << line;
    }
  EXPECT_EQ(std::ranges::count(actions, "reduce_shard llm.head microbatch 2"), 1);
}

TEST(Slots, ARankThatOffloadsHoldsAFewUnits) {
  Plan plan = make_plan(Options{}, tiny_llava_config({.layers = 6}), 1);
  for (Sharding& sharding : plan.shardings) sharding.offloads = true;
  EXPECT_LE(make_slots(plan.schedule_parts(), plan.precisions)[0].gathered.bytes.size(), 3);
}

TEST(Schedule, ForwardPrefetchPostGathersAfterTheUnitBefore) {
  const Lines actions = actions_with([](ModuleMeshOptions& mesh) {
    mesh.forward_prefetch = "post";
    mesh.prefetch_depth = 2;
  });
  EXPECT_EQ(from(actions, "forward vision.layers.0", 4),
            (Lines{"forward vision.layers.0", "reshard vision.layers.0", "unshard vision.projector",
                   "forward vision.layers.1"}));
}

TEST(Slots, TwoAreEnoughForUnitsOfOneSizeAndShardGradOpNeedsAll) {
  Options options;
  const Plan full = make_plan(options, tiny_llava_config({.layers = 6}), 4);
  EXPECT_EQ(full.slots[0].gathered.bytes.size(), 2);
  options.meshes["llm"].strategy = "shard_grad_op";
  const Plan zero2 = make_plan(options, tiny_llava_config({.layers = 6}), 4);
  EXPECT_GE(zero2.slots[0].gathered.bytes.size(), 8);
  EXPECT_GT(zero2.slots[0].gathered.total_bytes(), full.slots[0].gathered.total_bytes());
  EXPECT_EQ(zero2.slots[0].gradients.total_bytes(), full.slots[0].gradients.total_bytes());
}

TEST(Schedule, BuffersOfAnyNumberOfEncodersHaveTheirSlots) {
  const auto llava = nlohmann::json::parse(tiny_llava_config());
  nlohmann::json config{{"model_type", "composed"}, {"text_config", llava["text_config"]}};
  for (int encoder = 0; encoder < 4; ++encoder)
    config["encoders"]["eye" + std::to_string(encoder)] = {
        {"vision_config", llava["vision_config"]}, {"image_token_index", 3 + encoder}};

  const Plan plan = make_plan({}, config.dump(), 2);

  ASSERT_EQ(plan.model.encoders.size(), 4u);
  for (size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
    const std::vector<int>& units = plan.buffers[buffer].units;
    if (!plan.shardings[buffer].gathered() || units.empty()) continue;
    EXPECT_GE(plan.slots.at(0).gathered.slot_of_buffer[buffer], 0)
        << plan.model.units[units.front()].name;
  }
}

}  // namespace
}  // namespace zea::test_schedule
