// SPDX-License-Identifier: Apache-2.0
// Tensor, sequence and context parallelism change nothing: in fp64 every grid of the table gives
// the losses, gradients and weights of one rank, under the collectives in shared memory, which runs
// use, and the strict ones; some grids of the first scenario also under MPI alone. Grids of few
// ranks are tried side by side. ZEA_GRIDS is a regular expression of the names of grids that every
// scenario is tried on; without it the scenarios share the table.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <set>

#include "support/compared_run.hpp"
#include "support/grid_scenarios.hpp"
#include "support/mpi_main.hpp"
#include "support/recording_collectives.hpp"

namespace zea::testing::test_grids {
namespace {

/// The grids that were asked for; nothing: a few for each scenario.
std::optional<std::string> asked_grids() {
  const char* asked = std::getenv("ZEA_GRIDS");
  if (asked == nullptr) return std::nullopt;
  return asked;
}

/// Returns the grids that ZEA_GRIDS asks for; all if it is not set.
std::vector<Grid> asked_of(const std::vector<Grid>& grids) {
  const std::optional<std::string> asked = asked_grids();
  if (!asked) return grids;
  const std::regex names(*asked);
  std::vector<Grid> found;
  std::copy_if(grids.begin(), grids.end(), std::back_inserter(found),
               [&](const Grid& grid) { return std::regex_search(grid.name(), names); });
  return found;
}

/// Results of one rank, computed once for each number of heads.
class Expected {
 public:
  explicit Expected(const GridScenario& scenario)
      : scenario_(scenario), alone_(world().communicator().split(world().rank(), "alone")) {}

  const ComparedResult& on(const Grid& grid) {
    auto& result = results_[grid.heads];
    if (!result) {
      const Grid one = one_rank_like(grid);
      result = run_compared(alone_, make_mpi_collectives, dataset_of(scenario_, one),
                            run_of(scenario_, one));
    }
    return *result;
  }

 private:
  const GridScenario& scenario_;
  Communicator alone_;
  std::map<int, std::optional<ComparedResult>> results_;
};

Trial trial_of(const std::vector<Grid>& all, size_t grid, bool is_strict) {
  return make_trial(all[grid].name(), grid, all[grid].ranks(), is_strict);
}

Trial mpi_trial_of(const std::vector<Grid>& all, size_t grid) {
  return {all[grid].name() + "; MPI collectives", grid, all[grid].ranks(), make_mpi_collectives};
}

/// Under both collectives where grids were asked for, else under the one and the other in turn;
/// some over MPI, too.
std::vector<Trial> trials_of(const std::vector<Grid>& grids, bool over_mpi) {
  std::vector<Trial> trials;
  for (size_t g = 0; g < grids.size(); ++g) {
    const bool is_strict = g % 2 == 1;
    trials.push_back(trial_of(grids, g, is_strict));
    if (asked_grids()) trials.push_back(trial_of(grids, g, !is_strict));
    if (over_mpi && (g % 2 == 0 || asked_grids())) trials.push_back(mpi_trial_of(grids, g));
  }
  return trials;
}

class Grids : public ::testing::TestWithParam<int> {};

TEST_P(Grids, EqualOneRank) {
  const GridScenario& scenario = grid_scenarios()[GetParam()];
  const bool is_first = &scenario == &grid_scenarios().front();
  ASSERT_FALSE(asked_of(testing::grids()).empty())
      << "ZEA_GRIDS = \"" << *asked_grids() << "\": no grid of the table has such a name; "
      << "allowed: regular expressions of names like \"" << testing::grids()[0].name() << "\"";
  const std::vector<Grid> grids = asked_of(grids_for(scenario, asked_grids().has_value()));
  if (grids.empty()) GTEST_SKIP() << "no grid that was asked for is a matter of this scenario";
  Expected expected(scenario);
  sweep(trials_of(grids, is_first), [&](const Communicator& part, const Trial& trial) {
    const Grid& grid = grids[trial.layout];
    const ComparedResult got =
        run_compared(part, trial.make, dataset_of(scenario, grid), run_of(scenario, grid));
    if (part.rank() == 0) expect_equal(got, expected.on(grid));
  });
}

std::string name_of(const ::testing::TestParamInfo<int>& info) {
  std::string name = grid_scenarios()[info.param].name;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Grids,
                         ::testing::Range(0, static_cast<int>(grid_scenarios().size())), name_of);

constexpr const char* kPassedStates = "gated delta rules that pass states";

class Generation : public ::testing::TestWithParam<const char*> {};

TEST_P(Generation, EqualsThatOfOneRank) {
  const auto scenario =
      std::find_if(grid_scenarios().begin(), grid_scenarios().end(),
                   [](const GridScenario& one) { return one.name == std::string(GetParam()); });
  ASSERT_NE(scenario, grid_scenarios().end());
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  std::vector<Grid> grids = grids_for(*scenario, false);
  // Scans whose heads cp ranks cannot share.
  if (scenario->name == std::string(kPassedStates))
    grids.push_back({{1, 3, "ring", "zigzag"}, "full_shard"});
  std::vector<Trial> trials;
  for (size_t g = 0; g < grids.size(); ++g) trials.push_back(trial_of(grids, g, g % 2 == 0));
  sweep(trials, [&](const Communicator& part, const Trial& trial) {
    const Grid& grid = grids[trial.layout];
    const std::string got = predictions_on(part, trial.make, dataset_of(*scenario, grid),
                                           run_of(*scenario, grid), kDrawn);
    if (part.rank() != 0) return;
    const Grid one = one_rank_like(grid);
    const std::string expected =
        predictions_on(alone, make_mpi_collectives, dataset_of(*scenario, one),
                       run_of(*scenario, one), kDrawnWithoutCache);
    EXPECT_EQ(got, expected);
    EXPECT_EQ(std::count(got.begin(), got.end(), '\n'), 16);
  });
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Generation,
                         ::testing::Values("images that see all of themselves",
                                           "rows shorter than ranks x block",
                                           "a vocabulary that tp does not divide", "GPT-2",
                                           "windows in every other layer, with scores of their own",
                                           "Qwen3-Omni, experts, images, videos and sound in "
                                           "chunks",
                                           "Gemma 4 E4B, images, videos and sound, clipped linears",
                                           kPassedStates));

const Grid kBothAxes{{2, 2, "ring", "makespan_min"}, "full_shard", 1, {{1, 1}}, "no_shard"};

TEST(GridsTeeth, AnotherDataSetIsSeen) {
  const GridScenario& scenario = grid_scenarios().front();
  const Communicator part = first_ranks(kBothAxes.ranks());
  Expected expected(scenario);
  if (world().rank() >= kBothAxes.ranks()) return;
  const ComparedResult got = run_compared(
      part, make_host_collectives, dataset_of(scenario, kBothAxes, 1), run_of(scenario, kBothAxes));
  EXPECT_GT(difference(got, expected.on(kBothAxes)), 1e-6);
}

/// One rank's part of everything is wrong, each in turn: its pieces are used by all.
TEST(GridsTeeth, TheWeightsOfEveryRankAreSeen) {
  const GridScenario& scenario = grid_scenarios().front();
  const Communicator part = first_ranks(kBothAxes.ranks());
  Expected expected(scenario);
  if (world().rank() >= kBothAxes.ranks()) return;
  for (int wrong = 0; wrong < kBothAxes.ranks(); ++wrong) {
    TinyRunOptions options = run_of(scenario, kBothAxes);
    if (part.rank() == wrong) options.weights_seed = 2;
    const ComparedResult got =
        run_compared(part, make_host_collectives, dataset_of(scenario, kBothAxes), options);
    EXPECT_GT(std::abs(got.losses[0] - expected.on(kBothAxes).losses[0]), 1e-6) << wrong;
  }
}

/// As if nothing that both tp ranks hold had to be summed over them.
TEST(GridsTeeth, ASumThatIsLeftOutIsSeen) {
  const GridScenario& scenario = grid_scenarios().front();
  const Communicator part = first_ranks(kBothAxes.ranks());
  Expected expected(scenario);
  if (world().rank() >= kBothAxes.ranks()) return;
  TinyRunOptions options = run_of(scenario, kBothAxes);
  options.adjust = [](Plan& plan) {
    for (ParamShard& cut : plan.cuts) cut.holders = 1;
  };
  const ComparedResult got =
      run_compared(part, make_host_collectives, dataset_of(scenario, kBothAxes), options);
  const ComparedResult& right = expected.on(kBothAxes);
  EXPECT_NEAR(got.losses[0], right.losses[0], kSameTraining);
  EXPECT_GT(std::abs(got.losses.back() - right.losses.back()), 1e-6);
}

TEST(GridsTeeth, TheAxesCommunicate) {
  const GridScenario& scenario = grid_scenarios().front();
  const Communicator part = first_ranks(kBothAxes.ranks());
  if (world().rank() >= kBothAxes.ranks()) return;
  Record record;
  const TinyRunOptions options = run_of(scenario, kBothAxes);
  run_compared(part, recording(record), dataset_of(scenario, kBothAxes), options);
  std::set<std::pair<std::string, int>> calls;
  for (const RecordedCall& call : record) calls.insert({call.call, call.ranks});
  EXPECT_TRUE(calls.contains({"all_gather", 2})) << "rows of tp ranks, parameters of cp ranks";
  EXPECT_TRUE(calls.contains({"reduce_scatter", 2}));
  EXPECT_TRUE(calls.contains({"all_to_all", 4})) << "features";
  EXPECT_TRUE(calls.contains({"send", 2})) << "keys of cp ranks";
  // The norms are in the part of a buffer that the first cp rank owns.
  EXPECT_EQ(calls.contains({"all_reduce", 2}), part.rank() < 2) << "what both tp ranks hold";
}

}  // namespace
}  // namespace zea::testing::test_grids
