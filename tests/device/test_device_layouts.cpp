// SPDX-License-Identifier: Apache-2.0
// The engine on a device that is not the host, over NCCL's functions: grids and pipelines of the
// tables give in fp64 what one rank gives on the host, and the stand-in finds no fault. Some of
// them; ZEA_DEVICE_STRIDE = 1 tries all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "device/device.hpp"
#include "device/torch_device.hpp"
#include "support/compared_run.hpp"
#include "support/grid_scenarios.hpp"
#include "support/mpi_main.hpp"
#include "support/pipeline_runs.hpp"

namespace zea::testing::test_device_layouts {
namespace {

size_t stride(size_t usual) {
  const char* asked = std::getenv("ZEA_DEVICE_STRIDE");
  return asked != nullptr ? std::strtoul(asked, nullptr, 10) : usual;
}

/// Scores that the library's attention does not have; the plan refuses them for GPUs.
bool caps_scores(const GridScenario& scenario, const Grid& grid) {
  const TinyRunOptions run = run_of(scenario, grid);
  ModelSpec model = make_model_spec(run.config_json);
  if (run.remake) run.remake(model);
  return std::ranges::any_of(model.decoder.block.attention,
                             [](const AttentionSpec& way) { return way.scores.softcap > 0; });
}

/// Expects of every trial what its layout gives on the host of one rank.
void expect_same(const std::vector<Trial>& trials,
                 const std::function<MemoryDataset(size_t)>& dataset,
                 const std::function<TinyRunOptions(size_t)>& run,
                 const std::function<ComparedResult(const Communicator&, size_t)>& expected) {
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  sweep(trials, [&](const Communicator& part, const Trial& trial) {
    TinyRunOptions options = run(trial.layout);
    options.device = stand_in_device();
    const ComparedResult got = run_compared(part, trial.make, dataset(trial.layout), options);
    if (part.rank() == 0) expect_equal(got, expected(alone, trial.layout));
  });
}

TEST(DeviceLayouts, GridsEqualOneRankOfTheHost) {
  struct Case {
    const GridScenario* scenario;
    Grid grid;
  };
  std::vector<Case> cases;
  std::vector<Trial> trials;
  size_t number = 0;
  for (const GridScenario& scenario : grid_scenarios())
    for (const Grid& grid : grids_for(scenario, false))
      if (number++ % stride(17) == 0 && !caps_scores(scenario, grid)) {
        trials.push_back({std::string(scenario.name) + "; " + grid.name(), cases.size(),
                          grid.ranks(), make_stand_in_collectives});
        cases.push_back({&scenario, grid});
      }
  const auto run = [&](size_t i) { return run_of(*cases[i].scenario, cases[i].grid); };
  const auto dataset = [&](size_t i) { return dataset_of(*cases[i].scenario, cases[i].grid); };
  expect_same(trials, dataset, run, [&](const Communicator& alone, size_t i) {
    const Grid one = one_rank_like(cases[i].grid);
    return run_compared(alone, make_mpi_collectives, dataset_of(*cases[i].scenario, one),
                        run_of(*cases[i].scenario, one));
  });
}

TEST(DeviceLayouts, PipelinesEqualOneRankOfTheHost) {
  std::vector<Trial> trials;
  for (size_t i = 0; i < pipelines().size(); i += stride(12))
    trials.push_back({pipelines()[i].name(), i, pipelines()[i].ranks(), make_stand_in_collectives});
  const auto dataset = [](size_t i) { return dataset_of(pipelines()[i]); };
  const auto run = [](size_t i) { return run_of(pipelines()[i], deck_of(pipelines()[i])); };
  expect_same(trials, dataset, run, [](const Communicator& alone, size_t i) {
    return run_on_one_rank(alone, pipelines()[i]);
  });
}

/// Sharded state on the host, pinned or not, copied to the device for each use.
TEST(DeviceLayouts, OffloadedStateEqualsOneRankOfTheHost) {
  const GridScenario& scenario = grid_scenarios().front();
  const Grid grid{{2, 1}, "full_shard", 2};
  const auto run = [&](size_t pins) {
    TinyRunOptions options = run_of(scenario, grid);
    options.adjust = [pins](Plan& plan) {
      for (Sharding& sharding : plan.shardings) {
        sharding.offloads = true;
        sharding.pins_memory = pins == 1;
      }
    };
    return options;
  };
  const std::vector<Trial> trials = {{"pageable", 0, grid.ranks(), make_stand_in_collectives},
                                     {"pinned", 1, grid.ranks(), make_stand_in_collectives}};
  const int64_t held = device().times_held();
  expect_same(
      trials, [&](size_t) { return dataset_of(scenario, grid); }, run,
      [&](const Communicator& alone, size_t) {
        return run_compared(alone, make_mpi_collectives, dataset_of(scenario, one_rank_like(grid)),
                            run_of(scenario, one_rank_like(grid)));
      });
  EXPECT_TRUE(world().rank() < grid.ranks() || world().rank() >= 2 * grid.ranks() ||
              device().times_held() > held)
      << "no copy went on by itself";
}

/// Whoever runs communicators one after the other, in the order of the program, gets to the end: on
/// all ranks it is the same order.
TEST(DeviceLayouts, CommunicatorsMayTakeTurns) {
  const GridScenario& scenario = grid_scenarios().front();
  const std::vector<Grid> grids = {{{2, 2, "ring"}, "full_shard", 2}, {{1, 4}, "hybrid_shard", 2}};
  device().take_turns(true);
  expect_same(
      {{"ring", 0, 8, make_stand_in_collectives},
       {"gathered keys", 1, 8, make_stand_in_collectives}},
      [&](size_t i) { return dataset_of(scenario, grids[i]); },
      [&](size_t i) { return run_of(scenario, grids[i]); },
      [&](const Communicator& alone, size_t i) {
        const Grid one = one_rank_like(grids[i]);
        return run_compared(alone, make_mpi_collectives, dataset_of(scenario, one),
                            run_of(scenario, one));
      });
  device().take_turns(false);
}

/// Collectives whose results are never waited for.
class Forgetful : public WrappedCollectives {
 public:
  explicit Forgetful(std::unique_ptr<Collectives> inner)
      : WrappedCollectives(*inner), owned_(std::move(inner)) {}

  Pending start(const CollectiveCall& call) override {
    forgotten_.push_back(inner_.start(call));
    return Pending();
  }

 private:
  std::unique_ptr<Collectives> owned_;
  std::vector<Pending> forgotten_;
};

TEST(DeviceLayoutsTeeth, ResultsThatAreNotWaitedForAreSeen) {
  const GridScenario& scenario = grid_scenarios().front();
  const Grid grid{{1, 1}, "full_shard", 2};
  const Communicator part = first_ranks(grid.ranks());
  if (world().rank() >= grid.ranks()) return;
  TinyRunOptions options = run_of(scenario, grid);
  options.device = stand_in_device();
  const auto forgetful = [](const Communicator& communicator) -> std::unique_ptr<Collectives> {
    return std::make_unique<Forgetful>(make_stand_in_collectives(communicator));
  };
  try {
    run_compared(part, forgetful, dataset_of(scenario, grid), options);
  } catch (const Error&) {  // what it computes may be anything
  }
  const std::vector<std::string> faults = device().take_faults();
  const auto names = [&](const char* call) {
    return std::any_of(faults.begin(), faults.end(), [&](const std::string& fault) {
      return fault.find(call) != std::string::npos && fault.find("no event") != std::string::npos;
    });
  };
  EXPECT_TRUE(names("ncclAllGather in stream")) << "parameters";
  EXPECT_TRUE(names("ncclReduceScatter in stream")) << "gradients";
}

}  // namespace
}  // namespace zea::testing::test_device_layouts
