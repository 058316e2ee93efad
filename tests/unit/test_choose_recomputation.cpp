// SPDX-License-Identifier: Apache-2.0
// Which units are computed again for a limit of memory: within 3 % of the cheapest of all choices
// that keep it.
#include "zea/plan/estimate/choose_recomputation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/tiny_llava.hpp"
#include "zea/core/error.hpp"
#include "zea/plan/estimate/memory_estimate.hpp"

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

int64_t bytes_of(const Plan& plan, size_t place) {
  const std::vector<MicrobatchSizes> full(static_cast<size_t>(predicted_microbatches(plan)),
                                          full_microbatch(plan));
  return estimate_memory(plan, plan.pipeline.places[place].first_rank, full).total();
}

std::vector<int> units_of(const Plan& plan, size_t place) {
  std::vector<int> units;
  for (int stage : plan.pipeline.places[place].stages)
    for (int unit : plan.pipeline.stages[stage].units)
      if (plan.model.units[unit].kind != UnitKind::Head) units.push_back(unit);
  return units;
}

/// Forward, backward and again, of the ranks at a place.
double step_cost(const Plan& plan, size_t place) {
  double cost = 0;
  for (int stage : plan.pipeline.places[place].stages)
    for (int unit : plan.pipeline.stages[stage].units)
      cost += plan.unit_costs[unit].total() +
              (plan.recomputes(unit) ? plan.unit_costs[unit].forward : 0);
  return cost;
}

/// Every choice at a place: what it takes and what it computes.
struct Tried {
  int64_t bytes;
  double cost;
};

std::vector<Tried> try_all(Plan plan, size_t place) {
  const std::vector<int> units = units_of(plan, place);
  std::vector<Tried> all;
  for (size_t choice = 0; choice < size_t{1} << units.size(); ++choice) {
    for (size_t i = 0; i < units.size(); ++i) plan.recomputed[units[i]] = choice >> i & 1;
    all.push_back({bytes_of(plan, place), step_cost(plan, place)});
  }
  return all;
}

TEST(ChooseRecomputation, IsWithinThreePercentOfTheBestOfAll) {
  int chosen = 0;
  for (const int pp : {1, 2}) {
    Options options = deck_of(pp);
    options.mesh.rank_memory_mib = 1e6;
    const Plan free = make_fitting_plan(options, config(), pp);
    for (size_t place = 0; place < free.pipeline.places.size(); ++place) {
      const std::vector<Tried> all = try_all(free, place);
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
          EXPECT_LE(bytes_of(plan, place), limit);
          EXPECT_LE(step_cost(plan, place), 1.03 * best)
              << pp << " stages, place " << place << ", " << share;
          ++chosen;
        } catch (const PlanError&) {
          EXPECT_EQ(pp, 2) << "the limit of one place may be too little for the other";
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
  EXPECT_TRUE(std::ranges::none_of(plan.recomputed, std::identity()));
  EXPECT_EQ(describe_recomputation(plan), "computed again in backward: nothing, all fits\n");
}

std::string refusal(const Options& options) {
  try {
    make_fitting_plan(options, config(), 1);
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
  EXPECT_NE(refusal(options).find("with every unit computed again in backward"), std::string::npos);
  EXPECT_TRUE(refusal(options).starts_with("mesh.rank_memory_mib = 0.01: a rank of place"));
  options.model.activation_checkpointing = AutoOption::of_count(0);
  EXPECT_NE(refusal(options).find("set model.activation_checkpointing = \"auto\""),
            std::string::npos);
}

}  // namespace
}  // namespace zea::test_choose_recomputation
