// SPDX-License-Identifier: Apache-2.0
// Tensor, sequence and context parallelism change nothing: in fp64 every grid of the table gives
// the losses, gradients and weights of one rank, under the MPI and the strict collectives. Grids of
// few ranks are tried side by side. ZEA_GRIDS is a regular expression of the names of grids that
// every scenario is tried on; without it they share the table.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <regex>
#include <set>

#include "support/grid_scenarios.hpp"
#include "support/mpi_main.hpp"
#include "support/recording_collectives.hpp"

namespace zea::testing {
namespace {

constexpr double kTolerance = 1e-10;

/// The grids that were asked for; nothing: a few for each scenario.
std::optional<std::regex> asked_grids() {
  const char* asked = std::getenv("ZEA_GRIDS");
  if (asked == nullptr) return std::nullopt;
  return std::regex(asked);
}

struct GridResult : TinyResult {
  Tensors first_moment;  ///< after one step: (1 - beta1) x its gradient
};

GridResult run_on(const Communicator& ranks, const MakeCollectives& make, const Dataset& dataset,
                  const TinyRunOptions& options) {
  TinyRun run(ranks, make, dataset, options);
  GridResult result;
  run.train(1, result);
  result.first_moment = run.moments(kStateExpAvg);
  run.train(options.steps - 1, result);
  result.weights = run.weights();
  result.eval_loss = run.evaluate();
  return result;
}

/// What one rank gives, computed once for each number of heads.
class Expected {
 public:
  explicit Expected(const GridScenario& scenario)
      : scenario_(scenario), alone_(world().communicator().split(world().rank(), "alone")) {}

  const GridResult& on(const Grid& grid) {
    auto& result = results_[grid.heads];
    if (!result) {
      const Grid one = one_rank_like(grid);
      result =
          run_on(alone_, make_mpi_collectives, dataset_of(scenario_, one), run_of(scenario_, one));
    }
    return *result;
  }

 private:
  const GridScenario& scenario_;
  Communicator alone_;
  std::map<int, std::optional<GridResult>> results_;
};

/// The largest difference of anything that is compared.
double difference(const GridResult& a, const GridResult& b) {
  double largest = std::abs(a.eval_loss - b.eval_loss);
  for (size_t step = 0; step < b.losses.size(); ++step)
    largest = std::max({largest, std::abs(a.losses[step] - b.losses[step]),
                        std::abs(a.grad_norms[step] - b.grad_norms[step])});
  return std::max({largest, max_difference(a.first_moment, b.first_moment),
                   max_difference(a.weights, b.weights)});
}

void expect_equal(const GridResult& got, const GridResult& expected) {
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(got.losses[step], expected.losses[step], kTolerance) << "step " << step;
    EXPECT_NEAR(got.grad_norms[step], expected.grad_norms[step], kTolerance) << "step " << step;
    EXPECT_GT(expected.grad_norms[step], 0);
  }
  for (const auto& [name, values] : expected.first_moment) {
    const Tensors one{{name, values}}, other{{name, got.first_moment.at(name)}};
    EXPECT_LE(max_difference(other, one), kTolerance) << "gradient of " << name;
  }
  EXPECT_LE(max_difference(got.weights, expected.weights), kTolerance);
  EXPECT_NEAR(got.eval_loss, expected.eval_loss, kTolerance);
}

struct Trial {
  Grid grid;
  MakeCollectives make;
  const char* collectives;
  int first_rank = 0;
};

/// Trials that run at the same time, on ranks of their own.
std::vector<std::vector<Trial>> waves_of(const std::vector<Trial>& trials, int ranks) {
  std::vector<std::vector<Trial>> waves;
  int used = ranks;
  for (Trial trial : trials) {
    if (used + trial.grid.ranks() > ranks) {
      waves.emplace_back();
      used = 0;
    }
    trial.first_rank = used;
    used += trial.grid.ranks();
    waves.back().push_back(trial);
  }
  return waves;
}

/// Gives each trial its ranks. Collective over the world.
void sweep(const std::vector<Trial>& trials,
           const std::function<void(const Communicator&, const Trial&)>& run) {
  const Communicator all = world().communicator();
  for (const auto& wave : waves_of(trials, all.size())) {
    const Trial* mine = nullptr;
    for (const Trial& trial : wave)
      if (all.rank() >= trial.first_rank && all.rank() < trial.first_rank + trial.grid.ranks())
        mine = &trial;
    const Communicator part = all.split(mine ? mine->first_rank : Communicator::kNoColor, "grid");
    if (!mine) continue;
    const std::string name = mine->grid.name() + "; " + mine->collectives;
    SCOPED_TRACE(name);
    try {
      run(part, *mine);
    } catch (const std::exception& error) {
      throw std::runtime_error(name + ": " + error.what());
    }
  }
}

Trial trial_of(const Grid& grid, bool is_strict) {
  if (is_strict) return {grid, make_strict_collectives, "strict collectives"};
  return {grid, make_host_collectives, "host collectives"};
}

/// Under both collectives where all grids are tried, else under the one and the other in turn.
std::vector<Trial> trials_of(const GridScenario& scenario) {
  const std::optional<std::regex> asked = asked_grids();
  const bool all = asked || &scenario == &grid_scenarios().front();
  std::vector<Trial> trials;
  bool is_strict = false;
  for (const Grid& grid : grids_for(scenario, all)) {
    if (asked && !std::regex_search(grid.name(), *asked)) continue;
    trials.push_back(trial_of(grid, is_strict));
    is_strict = !is_strict;
    if (all) trials.push_back(trial_of(grid, is_strict));
  }
  return trials;
}

class Grids : public ::testing::TestWithParam<int> {};

TEST_P(Grids, EqualOneRank) {
  const GridScenario& scenario = grid_scenarios()[GetParam()];
  Expected expected(scenario);
  sweep(trials_of(scenario), [&](const Communicator& part, const Trial& trial) {
    const GridResult got =
        run_on(part, trial.make, dataset_of(scenario, trial.grid), run_of(scenario, trial.grid));
    if (part.rank() == 0) expect_equal(got, expected.on(trial.grid));
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

/// The samples of a scenario, with a text for each token.
MemoryDataset named_tokens(const GridScenario& scenario, const Grid& grid) {
  const MemoryDataset plain = dataset_of(scenario, grid);
  std::vector<Sample> samples;
  for (size_t i = 0; i < plain.index().size(); ++i)
    samples.push_back(plain.read(static_cast<int64_t>(i)));
  std::vector<std::string> names;
  for (int token = 0; token < 64; ++token) names.push_back(std::to_string(token) + " ");
  return MemoryDataset(std::move(samples), plain.image_token(), {}, names);
}

std::string predictions_on(const Communicator& ranks, const MakeCollectives& make,
                           const GridScenario& scenario, const Grid& grid) {
  const MemoryDataset dataset = named_tokens(scenario, grid);
  const TinyRunOptions options = run_of(scenario, grid);
  TinyRun run(ranks, make, dataset, options);
  LoaderOptions loading;
  if (!scenario.gpt2) loading.image.size = run.engine().plan().model.vision->image_size;
  return evaluate(run.engine(), run.control(), dataset, loading, {.generate_tokens = 4})
      .predictions_jsonl;
}

class Generation : public ::testing::TestWithParam<const char*> {};

TEST_P(Generation, EqualsThatOfOneRank) {
  const auto scenario =
      std::find_if(grid_scenarios().begin(), grid_scenarios().end(),
                   [](const GridScenario& one) { return one.name == std::string(GetParam()); });
  ASSERT_NE(scenario, grid_scenarios().end());
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  std::vector<Trial> trials;
  for (const Grid& grid : grids_for(*scenario, false))
    trials.push_back(trial_of(grid, trials.size() % 2 == 0));
  sweep(trials, [&](const Communicator& part, const Trial& trial) {
    const std::string got = predictions_on(part, trial.make, *scenario, trial.grid);
    if (part.rank() != 0) return;
    const std::string expected =
        predictions_on(alone, make_mpi_collectives, *scenario, one_rank_like(trial.grid));
    EXPECT_EQ(got, expected);
    EXPECT_EQ(std::count(got.begin(), got.end(), '\n'), 16);
  });
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Generation,
                         ::testing::Values("images that see all of themselves",
                                           "rows shorter than ranks x block",
                                           "a vocabulary that tp does not divide", "GPT-2"));

const Grid kBothAxes{{2, 2, "ring", "makespan_min"}, "full_shard", 1, {{1, 1}}, "no_shard"};

TEST(GridsTeeth, AnotherDataSetIsSeen) {
  const GridScenario& scenario = grid_scenarios().front();
  const Communicator part = first_ranks(kBothAxes.ranks());
  Expected expected(scenario);
  if (world().rank() >= kBothAxes.ranks()) return;
  const GridResult got = run_on(part, make_host_collectives, dataset_of(scenario, kBothAxes, 1),
                                run_of(scenario, kBothAxes));
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
    const GridResult got =
        run_on(part, make_host_collectives, dataset_of(scenario, kBothAxes), options);
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
    for (ParamCut& cut : plan.cuts) cut.holders = 1;
  };
  const GridResult got =
      run_on(part, make_host_collectives, dataset_of(scenario, kBothAxes), options);
  const GridResult& right = expected.on(kBothAxes);
  EXPECT_NEAR(got.losses[0], right.losses[0], kTolerance);
  EXPECT_GT(std::abs(got.losses[4] - right.losses[4]), 1e-6);
}

TEST(GridsTeeth, TheAxesCommunicate) {
  const GridScenario& scenario = grid_scenarios().front();
  const Communicator part = first_ranks(kBothAxes.ranks());
  if (world().rank() >= kBothAxes.ranks()) return;
  Record record;
  const TinyRunOptions options = run_of(scenario, kBothAxes);
  run_on(part, recording(record), dataset_of(scenario, kBothAxes), options);
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
}  // namespace zea::testing
