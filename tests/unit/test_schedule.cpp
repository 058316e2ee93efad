// SPDX-License-Identifier: Apache-2.0
// Schedules on paper: every rank's list is simulated side by side. Collectives match over each
// group, buffers are gathered when a unit needs them, and each gradient is reduced after its last
// backward.
#include "zea/plan/schedule.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/tiny_llava.hpp"
#include "zea/plan/plan.hpp"

namespace zea {
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
  options.mesh_vision.strategy = c.vision;
  options.mesh_llm.strategy = c.llm;
  options.vision.train = c.train_vision;
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
  return make_schedule(plan.schedule_input(step, rank, false));
}

StepPlan step_of(const Plan& plan, const Case& c) {
  std::vector<int64_t> ids(c.index.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  return plan.step_plan(0, ids, c.index);
}

bool communicates(const Action& action) {
  return action.kind == ActionKind::Unshard || action.kind == ActionKind::ReduceShard ||
         action.kind == ActionKind::ReduceReplicas;
}

TEST(Schedule, RanksOfAGroupMakeTheSameCollectivesInTheSameOrder) {
  for (const Case& c : cases()) {
    const Plan plan = plan_of(c);
    const StepPlan step = step_of(plan, c);
    for (size_t group = 0; group < plan.groups.size(); ++group)
      for (int rank = 1; rank < c.ranks; ++rank) {
        const bool same_shards = rank / plan.mesh.dp_shard == 0;
        std::vector<Action> first, other;
        const auto collect = [&](int of, std::vector<Action>& into) {
          for (const Action& action : actions_of(plan, step, of))
            if (communicates(action) && action.group == static_cast<int>(group) &&
                (same_shards || action.kind == ActionKind::ReduceReplicas))
              into.push_back(action);
        };
        collect(0, first);
        collect(rank, other);
        EXPECT_EQ(first, other) << plan.groups[group].name << " rank " << rank;
      }
  }
}

TEST(Schedule, UnitsRunOnGatheredBuffersAndAtMostTwoAreGathered) {
  for (const Case& c : cases()) {
    const Plan plan = plan_of(c);
    const StepPlan step = step_of(plan, c);
    const auto unit_groups = groups_of_units(plan.model, plan.groups);
    for (int rank = 0; rank < c.ranks; ++rank) {
      std::set<int> gathered;
      for (const Action& action : actions_of(plan, step, rank)) {
        if (action.kind == ActionKind::Unshard) {
          EXPECT_TRUE(gathered.insert(action.group).second);
        }
        if (action.kind == ActionKind::Reshard) {
          EXPECT_EQ(gathered.erase(action.group), 1);
        }
        std::set<std::string> units;
        for (int group : gathered) units.insert(plan.groups[group].name);
        EXPECT_LE(units.size(), c.tied ? 4u : 2u);
        if (action.unit < 0) continue;
        for (int group : unit_groups[action.unit])
          EXPECT_TRUE(!plan.shardings[group].gathered() || gathered.contains(group));
      }
      EXPECT_TRUE(gathered.empty());
    }
  }
}

TEST(Schedule, EveryGradientIsReducedAfterItsLastBackward) {
  for (const Case& c : cases()) {
    const Plan plan = plan_of(c);
    const StepPlan step = step_of(plan, c);
    const auto unit_groups = groups_of_units(plan.model, plan.groups);
    for (int rank = 0; rank < c.ranks; ++rank) {
      const auto actions = actions_of(plan, step, rank);
      const auto stepped = groups_with_gradient(plan.schedule_input(step, rank, false));
      for (size_t group = 0; group < plan.groups.size(); ++group) {
        int open = 0, replicas = 0;
        for (const Action& action : actions) {
          const bool uses = action.kind == ActionKind::Backward &&
                            std::ranges::find(unit_groups[action.unit], static_cast<int>(group)) !=
                                unit_groups[action.unit].end();
          if (uses) {
            EXPECT_EQ(replicas, 0) << "backward after the last reduction";
            ++open;
          }
          if (action.group != static_cast<int>(group)) continue;
          if (action.kind == ActionKind::ReduceShard) open = 0;
          if (action.kind == ActionKind::ReduceReplicas) ++replicas;
        }
        const Sharding& sharding = plan.shardings[group];
        if (!plan.groups[group].trainable) {
          EXPECT_EQ(replicas, 0);
          continue;
        }
        if (sharding.gathered()) {
          EXPECT_EQ(open, 0) << plan.groups[group].name;
        }
        EXPECT_EQ(replicas, stepped[group] && sharding.replicas > 1 ? 1 : 0)
            << plan.groups[group].name;
      }
    }
  }
}

TEST(Schedule, AModuleWithoutItemsDoesNothing) {
  const Case c{2, 1, "full_shard", "full_shard", false, true, true, {{10, 0, 3}, {10, 0, 3}}};
  const Plan plan = plan_of(c);
  const StepPlan step = step_of(plan, c);
  for (const Action& action : actions_of(plan, step, 0)) {
    const std::string& module =
        action.unit >= 0 ? plan.model.units[action.unit].module : plan.groups[action.group].module;
    EXPECT_EQ(module, "llm");
  }
  const auto stepped = groups_with_gradient(plan.schedule_input(step, 0, false));
  for (size_t group = 0; group < plan.groups.size(); ++group)
    EXPECT_EQ(stepped[group], plan.groups[group].module == "llm" && plan.groups[group].trainable);
}

TEST(Schedule, GathersTheNextUnitBeforeThisOneRuns) {
  const Case c{2, 1, "full_shard", "full_shard", false, true, true, {{10, 1, 3}, {10, 1, 3}}};
  const Plan plan = plan_of(c);
  const auto actions = actions_of(plan, step_of(plan, c), 0);
  std::vector<std::string> head;
  for (size_t i = 0; i < 5; ++i) head.push_back(describe(actions[i], plan.model, plan.groups));
  EXPECT_EQ(head, (std::vector<std::string>{
                      "unshard vision.embed microbatch 0", "unshard vision.layers.0 microbatch 0",
                      "forward vision.embed microbatch 0", "reshard vision.embed microbatch 0",
                      "unshard vision.layers.1 microbatch 0"}));
}

}  // namespace
}  // namespace zea
