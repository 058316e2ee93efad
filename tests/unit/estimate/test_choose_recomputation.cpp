// SPDX-License-Identifier: Apache-2.0
// Recomputed units for a limit of memory: within 3 % of the cheapest of all choices that keep it.
#include "estimate/fitting_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "estimate/describe.hpp"
#include "estimate/memory_estimate.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_choose_recomputation {
namespace {

constexpr double kMebibyte = 1 << 20;

Options deck_of(int pp) {
  Options options;
  options.model.activation_checkpointing = AutoOption();
  options.data.row_tokens = 96;
  options.schedule.global_batch = 64;
  options.meshes["llm"].pp = pp;
  return options;
}

/// Units of very unlike costs.
std::string config() {
  return testing::tiny_llava_config({.layers = 3, .vocabulary = 300, .image_size = 16});
}

int64_t bytes_of(const Plan& plan, size_t group) {
  const std::vector<MicrobatchSizes> full(static_cast<size_t>(predicted_microbatches(plan)),
                                          full_microbatch(plan));
  return estimate_memory(plan, plan.pipeline.stage_groups[group].first_rank, full).total();
}

std::vector<int> units_of(const Plan& plan, size_t group) {
  std::vector<int> units;
  for (int stage : plan.pipeline.stage_groups[group].stages)
    for (int unit : plan.pipeline.stages[stage].units)
      if (plan.model.units[unit].kind != UnitKind::Head) units.push_back(unit);
  return units;
}

/// Forward, backward and again, of the ranks at a group.
double step_cost(const Plan& plan, size_t group) {
  double cost = 0;
  for (int stage : plan.pipeline.stage_groups[group].stages)
    for (int unit : plan.pipeline.stages[stage].units)
      cost += plan.unit_costs[unit].total() +
              recomputed_share(plan.recomputed[unit]) * plan.unit_costs[unit].forward;
  return cost;
}

/// One choice for a stage group: its memory and its computation.
struct Tried {
  int64_t bytes;
  double cost;
};

/// Tries every set of fully recomputed units, with all others kept or all selective.
std::vector<Tried> try_all(Plan plan, size_t group) {
  const std::vector<int> units = units_of(plan, group);
  std::vector<Tried> all;
  for (const Recompute rest : {Recompute::None, Recompute::Selective})
    for (size_t choice = 0; choice < size_t{1} << units.size(); ++choice) {
      for (size_t i = 0; i < units.size(); ++i)
        plan.recomputed[units[i]] = choice >> i & 1 ? Recompute::Full : rest;
      all.push_back({bytes_of(plan, group), step_cost(plan, group)});
    }
  return all;
}

TEST(ChooseRecomputation, IsWithinThreePercentOfTheBestOfAll) {
  int chosen = 0;
  for (const int pp : {1, 2}) {
    Options options = deck_of(pp);
    options.mesh.rank_memory_mib = 1e6;
    const Plan free = make_fitting_plan(options, config(), pp);
    for (size_t group = 0; group < free.pipeline.stage_groups.size(); ++group) {
      const std::vector<Tried> all = try_all(free, group);
      const auto [least, most] = std::ranges::minmax(all, {}, &Tried::bytes);
      ASSERT_LT(least.bytes, most.bytes);
      for (const double share : {0.02, 0.2, 0.4, 0.6, 0.8, 0.95}) {
        const auto limit = least.bytes + static_cast<int64_t>(
                                             share * static_cast<double>(most.bytes - least.bytes));
        double best = HUGE_VAL;
        for (const Tried& tried : all)
          if (tried.bytes <= limit) best = std::min(best, tried.cost);
        options.mesh.rank_memory_mib = static_cast<double>(limit) / kMebibyte;
        try {
          const Plan plan = make_fitting_plan(options, config(), pp);
          EXPECT_LE(bytes_of(plan, group), limit);
          EXPECT_LE(step_cost(plan, group), 1.03 * best)
              << pp << " stages, group " << group << ", " << share;
          ++chosen;
        } catch (const PlanError&) {
          EXPECT_EQ(pp, 2) << "the limit of one group may be too little for the other";
        }
      }
    }
  }
  EXPECT_GE(chosen, 10);
}

TEST(ChooseRecomputation, RecomputesNothingWhereAllFits) {
  Options options = deck_of(1);
  options.mesh.rank_memory_mib = 1e6;
  const Plan plan = make_fitting_plan(options, config(), 1);
  EXPECT_EQ(plan.recomputed, std::vector(plan.model.units.size(), Recompute::None));
  EXPECT_EQ(describe_recomputation(plan), "recomputed in backward: nothing, all fits\n");
}

/// Selective recomputation costs a tenth of a block's forward and frees over 5 % of these bytes.
TEST(ChooseRecomputation, TakesNormsAndActivationsBeforeWholeUnits) {
  Options options = deck_of(1);
  options.model.activation_checkpointing = AutoOption::of_count(0);
  const auto bytes = [&] { return bytes_of(make_plan(options, config(), 1), 0); };
  const int64_t all = bytes();
  options.model.activation_checkpointing = AutoOption::selective();
  const int64_t selective = bytes();
  EXPECT_LT(selective, 0.95 * static_cast<double>(all));
  const std::string text = describe_recomputation(make_plan(options, config(), 1));
  EXPECT_TRUE(
      text.starts_with("recomputed in backward: selective (outputs of norms and activations): "
                       "vision."))
      << text;
  EXPECT_NE(text.find("; nothing to recompute in: vision.embed"), std::string::npos) << text;
  EXPECT_NE(text.find("llm.layers.0..llm.layers.2, about "), std::string::npos) << text;
  options.model.activation_checkpointing = AutoOption();
  options.mesh.rank_memory_mib = static_cast<double>(selective) / kMebibyte;

  const Plan plan = make_fitting_plan(options, config(), 1);

  EXPECT_EQ(std::ranges::count(plan.recomputed, Recompute::Full), 0);
  EXPECT_GT(std::ranges::count(plan.recomputed, Recompute::Selective), 0);
  EXPECT_LE(bytes_of(plan, 0), selective);
  EXPECT_NE(describe_recomputation(plan).find(
                "recomputed in backward: selective (outputs of norms and activations): "),
            std::string::npos);
}

std::string refusal(const Options& options, int ranks = 1) {
  try {
    make_fitting_plan(options, config(), ranks);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ChooseRecomputation, RefusesALimitThatCannotBeMet) {
  Options options = deck_of(1);
  EXPECT_NE(refusal(options).find("model.activation_checkpointing = \"auto\" recomputes what "
                                  "mesh.rank_memory_mib asks for, which is 0"),
            std::string::npos);
  options.mesh.rank_memory_mib = 0.01;
  EXPECT_NE(refusal(options).find("with every unit recomputed in backward"), std::string::npos);
  EXPECT_TRUE(refusal(options).starts_with("mesh.rank_memory_mib = 0.01: a rank of group"));
  options.model.activation_checkpointing = AutoOption::of_count(0);
  EXPECT_NE(refusal(options).find("set model.activation_checkpointing = \"auto\""),
            std::string::npos);
}

TEST(ChooseRecomputation, KeepsTheLimitWhereNothingTrains) {
  for (const RunMode mode : {RunMode::Evaluate, RunMode::Generate}) {
    Options options = deck_of(1);
    options.run.mode = mode;
    options.eval.generate_tokens = mode == RunMode::Generate ? 32 : 0;
    options.mesh.rank_memory_mib = 1e6;
    const Plan free = make_fitting_plan(options, config(), 1);
    EXPECT_EQ(describe_recomputation(free), "");
    const MemoryEstimate needed = estimate_groups(free, predicted_microbatches(free)).front();
    options.mesh.rank_memory_mib = static_cast<double>(needed.total()) / kMebibyte;
    EXPECT_EQ(refusal(options), "accepted");
    options.mesh.rank_memory_mib -= 0.01;

    const std::string refused = refusal(options);

    EXPECT_TRUE(refused.starts_with("mesh.rank_memory_mib = ")) << refused;
    EXPECT_EQ(refused.find("backward"), std::string::npos) << refused;
    EXPECT_EQ(refused.find("activation_checkpointing"), std::string::npos) << refused;
    EXPECT_EQ(refused.find("generate for fewer samples at once (schedule.global_batch, "
                           "eval.samples; kept keys take ") != std::string::npos,
              mode == RunMode::Generate)
        << refused;
  }
}

/// This includes evaluations in training: keys of all samples are in memory together with the
/// update's needs.
TEST(ChooseRecomputation, CountsTheKeysThatGenerationKeeps) {
  Options options = deck_of(1);
  options.model.activation_checkpointing = AutoOption::of_count(0);
  options.schedule.global_batch = 4096;
  const auto told = [&](int64_t tokens, int64_t every) {
    options.eval.generate_tokens = tokens;
    options.eval.every = every;
    const Plan plan = make_plan(options, config(), 1);
    return estimate_groups(plan, predicted_microbatches(plan)).front();
  };
  const MemoryEstimate step = told(0, 5), alone = told(32, 0);
  EXPECT_EQ(step.keys + alone.keys, 0);
  EXPECT_EQ(step.total(), alone.total());

  const MemoryEstimate said = told(32, 5);

  const Plan plan = make_plan(options, config(), 1);
  EXPECT_EQ(said.keys, kv_bytes_per_token(plan, 0) * 4096 * (96 + 32));
  EXPECT_EQ(said.states, step.states);
  EXPECT_LT(said.activations, step.activations);
  EXPECT_TRUE(said.peak_at.ends_with(" of an evaluation")) << said.peak_at;
  EXPECT_NE(describe(said).find(", kept keys "), std::string::npos);
  options.mesh.rank_memory_mib = static_cast<double>(said.total()) / kMebibyte - 0.01;
  EXPECT_NE(refusal(options).find("generate for fewer samples at once"), std::string::npos);
}

/// Four ranks, two per stage: the part of the limit that sharding and gathering take.
class ChooseGathering : public ::testing::Test {
 protected:
  Plan plan_of(AutoOption recomputes, AutoOption reshards, double limit_mib) {
    return make_fitting_plan(options_of(recomputes, reshards, limit_mib), config(), 4);
  }

  static Options options_of(AutoOption recomputes, AutoOption reshards, double limit_mib) {
    Options options = deck_of(2);
    options.model.activation_checkpointing = recomputes;
    options.mesh.rank_memory_mib = limit_mib;
    for (const char* module : {"llm", "vision"})
      options.meshes[module].reshard_after_forward = reshards;
    return options;
  }

  /// Returns the need of the stage group with the most.
  static double needed_mib(const Plan& plan) {
    int64_t most = 0;
    for (size_t group = 0; group < plan.pipeline.stage_groups.size(); ++group)
      most = std::max(most, bytes_of(plan, group));
    return static_cast<double>(most) / kMebibyte;
  }

  static bool gathers_for_each_use(const Plan& plan) {
    return std::ranges::any_of(plan.shardings, [](const Sharding& sharding) {
      return sharding.gathered() && !sharding.keeps_for_step;
    });
  }

  const AutoOption no_units_ = AutoOption::of_count(0), all_units_ = AutoOption::of_count(1),
                   open_ = AutoOption(), once_ = AutoOption::of(false),
                   each_use_ = AutoOption::of(true);
};

TEST_F(ChooseGathering, KeepsTheLimitOfTheWholeRank) {
  const double once = needed_mib(plan_of(no_units_, once_, 0));
  const double each_use = needed_mib(plan_of(no_units_, each_use_, 0));
  ASSERT_LT(each_use, once);

  EXPECT_FALSE(gathers_for_each_use(plan_of(no_units_, open_, 1.001 * once)));
  const Plan plan = plan_of(no_units_, open_, (once + each_use) / 2);

  EXPECT_TRUE(gathers_for_each_use(plan));
  EXPECT_LE(needed_mib(plan), (once + each_use) / 2);
  const std::string told = describe_gathering(plan, synthetic_samples(plan));
  EXPECT_NE(told.find("auto: more than mesh.rank_memory_mib otherwise"), std::string::npos) << told;
}

TEST_F(ChooseGathering, IsDoneWhereRecomputingIsNotEnough) {
  const double once = needed_mib(plan_of(all_units_, once_, 0));
  const double each_use = needed_mib(plan_of(all_units_, each_use_, 0));
  ASSERT_LT(each_use, once);

  EXPECT_FALSE(gathers_for_each_use(plan_of(open_, open_, 1.001 * once)));
  const Plan plan = plan_of(open_, open_, (once + each_use) / 2);

  EXPECT_TRUE(gathers_for_each_use(plan));
  EXPECT_LE(needed_mib(plan), (once + each_use) / 2);
}

TEST_F(ChooseGathering, IsNamedWhereTheDeckRulesItOut) {
  const double each_use = needed_mib(plan_of(no_units_, each_use_, 0));
  const std::string what = "set mesh.llm.reshard_after_forward = true";
  EXPECT_NE(refusal(options_of(no_units_, once_, each_use), 4).find(what), std::string::npos);
  const std::string least = refusal(options_of(no_units_, open_, each_use / 4), 4);
  EXPECT_EQ(least.find(what), std::string::npos) << least;
  EXPECT_NE(least.find("set model.activation_checkpointing"), std::string::npos) << least;
}

}  // namespace
}  // namespace zea::test_choose_recomputation
