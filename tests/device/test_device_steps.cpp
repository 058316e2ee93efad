// SPDX-License-Identifier: Apache-2.0
// Steps with found_inf on the device: launched without a wait, reported a step later, and the same
// bits as with the host's check on the same device; also with a non-finite step, and after a resume
// that follows it.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "batch/make_microbatch.hpp"
#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "device/device.hpp"
#include "device/kernels.hpp"
#include "device/planted_loss.hpp"
#include "device/torch_device.hpp"
#include "support/files.hpp"
#include "support/grid_scenarios.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/tiny_run.hpp"
#include "train/training_data.hpp"

namespace zea::testing::test_device_steps {
namespace {

constexpr int64_t kSteps = 6, kFault = 3;

class DeviceSteps : public ::testing::Test {
 protected:
  void SetUp() override { have_kernels(true); }
  void TearDown() override { have_kernels(false); }
};

const GridScenario& scenario() {
  return grid_scenarios().front();
}

Grid grid() {
  const Grid both{{1, 1}, "full_shard", 2};
  return world().communicator().size() == 1 ? one_rank_like(both) : both;
}

TinyRunOptions judged_by_device() {
  TinyRunOptions run = run_of(scenario(), grid());
  run.deck.schedule.steps = kSteps;
  run.deck.optim.on_nonfinite = "skip";
  run.device = stand_in_device();
  run.run_unit = planted_unit;
  return run;
}

/// By a guard whose window is never full.
TinyRunOptions judged_by_host() {
  TinyRunOptions run = judged_by_device();
  run.deck.optim.spike_deviations = 1e6;
  return run;
}

int64_t num_microbatches(TinyRun& run, const MemoryDataset& dataset, const TinyRunOptions& options,
                         int64_t steps) {
  Sampler sampler(static_cast<int64_t>(dataset.index().size()), options.deck.schedule.global_batch,
                  options.deck.run.seed, options.deck.data.shuffle);
  const Plan& plan = run.engine().plan();
  int64_t count = 0;
  for (int64_t step = 0; step < steps; ++step)
    count +=
        std::ssize(plan.rank_step(plan.step_plan(step, sampler.global_batch(step), dataset.index()),
                                  run.engine().world_rank())
                       .microbatches);
  return count;
}

/// The last rank's loss of step kFault is not finite.
void plant(TinyRun& run, const MemoryDataset& dataset, const TinyRunOptions& options) {
  const bool is_last = run.control().rank() == run.control().size() - 1;
  plant_loss(is_last ? num_microbatches(run, dataset, options, kFault) : 0);
}

struct Trained {
  TinyResult result = {};
  std::map<std::string, Tensors> states = {};
  TrainPosition position = {};

  explicit Trained(const TinyRunOptions& options) {
    const MemoryDataset dataset = dataset_of(scenario(), grid());
    TinyRun run(world().communicator(), make_stand_in_collectives, dataset, options);
    plant(run, dataset, options);
    run.train(kSteps, result);
    result.weights = run.weights();
    states = run.states();
    position = run.position();
  }
};

/// The model's config with some matrices large enough for 8-bit moments in blocks.
std::string with_blocks(const std::string& config_json) {
  nlohmann::json config = nlohmann::json::parse(config_json);
  config["text_config"]["hidden_size"] = 64;
  config["text_config"]["head_dim"] = 16;
  config["text_config"]["intermediate_size"] = 128;
  return config.dump();
}

void expect_bits_of_the_host(const char* optimizer) {
  TinyRunOptions by_device = judged_by_device(), by_host = judged_by_host();
  for (TinyRunOptions* run : {&by_device, &by_host}) {
    run->deck.optim.kind = optimizer;
    run->config_json = with_blocks(run->config_json);
    // After the skipped step, updates have other numbers than steps.
    run->deck.optim.lr_factors = {"llm = 0.5 from 2", "*norm* = 3 from 3"};
    run->deck.optim.weight_decays = {"*_proj* = 0.3 from 3"};
    run->deck.optim.frozen = {"*.layers.0.* from 3"};
  }
  const Trained got(by_device), expected(by_host);
  ASSERT_EQ(got.result.losses.size(), expected.result.losses.size());
  bool has_clipped = false;
  for (size_t step = 0; step < got.result.losses.size(); ++step) {
    has_clipped |= expected.result.grad_norms[step] > 0.5;
    if (step + 1 == kFault) {
      EXPECT_TRUE(std::isnan(got.result.losses[step]));
      EXPECT_TRUE(std::isnan(expected.result.losses[step]));
      continue;
    }
    EXPECT_EQ(got.result.losses[step], expected.result.losses[step]) << step;
    EXPECT_EQ(got.result.grad_norms[step], expected.result.grad_norms[step]) << step;
  }
  EXPECT_TRUE(has_clipped);
  EXPECT_EQ(got.result.weights, expected.result.weights);
  EXPECT_EQ(got.states, expected.states);
  if (std::string(optimizer) == "adamw_8bit") {
    EXPECT_TRUE(std::ranges::any_of(got.states.at("exp_avg_codes"),
                                    [](const auto& tensor) { return !tensor.second.empty(); }));
  }
  EXPECT_EQ(got.position.optimizer_step, kSteps - 1);
  EXPECT_EQ(got.position.history.skipped_in_a_row, 0);
  EXPECT_TRUE(device().take_faults().empty());
}

TEST_F(DeviceSteps, GiveTheBitsOfThoseThatTheHostJudges) {
  for (const char* optimizer : {"adamw", "adamw_8bit", "sgd"}) {
    SCOPED_TRACE(optimizer);
    expect_bits_of_the_host(optimizer);
  }
}

void expect_no_wait(const char* optimizer_kind) {
  TinyRunOptions options = judged_by_device();
  options.deck.optim.kind = optimizer_kind;
  options.config_json = with_blocks(options.config_json);
  const MemoryDataset dataset = dataset_of(scenario(), grid());
  TinyRun run(world().communicator(), make_stand_in_collectives, dataset, options);
  Optimizer optimizer(run.engine());
  TrainStep train_step(run.engine(), optimizer, run.control());
  ASSERT_TRUE(train_step.is_checked_on_device());
  const Plan& plan = run.engine().plan();
  const int rank = run.control().rank();
  for (int64_t number = 1; number <= 3; ++number) {
    const RankStep step =
        plan.rank_step(plan.step_plan(number - 1, {0, 1, 2, 3, 4, 5, 6}, dataset.index()), rank);
    std::vector<Microbatch> microbatches;
    for (const MicrobatchPlan& part : step.microbatches)
      microbatches.push_back(
          make_microbatch(load_microbatch(dataset, loading_on(plan, rank), part.samples),
                          plan.model, run.engine().microbatch_options()));
    const StepFlags asked{.save = number == 1 && rank == 0 ? 1.0 : 0.0};
    const int64_t awaited = device().times_awaited();
    train_step.begin();
    const std::optional<StepReport> known =
        train_step.run(step, microbatches, 0, asked, run.position());
    EXPECT_EQ(run.position().optimizer_step, number - 1);
    if (number == 1) {
      // The first step of all with blocks copies the codes there.
      if (std::string(optimizer_kind) != "adamw_8bit") {
        EXPECT_EQ(device().times_awaited() - awaited, 0);
      }
      EXPECT_FALSE(known);
      continue;
    }
    EXPECT_EQ(device().times_awaited() - awaited, 1) << "for the step before";
    ASSERT_TRUE(known);
    EXPECT_EQ(known->step, number - 1);
    EXPECT_EQ(known->flags.save, number == 2 ? 1 : 0);
    EXPECT_GT(known->loss, 0);
  }
  const std::optional<StepReport> last = train_step.finish(run.position());
  ASSERT_TRUE(last);
  EXPECT_EQ(last->step, 3);
  EXPECT_EQ(run.position().optimizer_step, 3);
  EXPECT_FALSE(train_step.finish(run.position()));
}

TEST_F(DeviceSteps, AreLaunchedWithoutAWaitAndHeardOfAStepLater) {
  for (const char* optimizer : {"adamw", "adamw_8bit"}) {
    SCOPED_TRACE(optimizer);
    expect_no_wait(optimizer);
  }
}

/// The same sentence, though the gradients that it tells of are gone.
TEST_F(DeviceSteps, StopWhereTheHostWouldHave) {
  const MemoryDataset dataset = dataset_of(scenario(), grid());
  const auto stop_of = [&](TinyRunOptions options) -> std::pair<std::string, Tensors> {
    options.deck.optim.on_nonfinite = "stop";
    TinyRun run(world().communicator(), make_stand_in_collectives, dataset, options);
    plant(run, dataset, options);
    TinyResult result;
    try {
      run.train(kSteps, result);
    } catch (const NonFiniteError& error) {
      return {error.what(), run.weights()};
    }
    return {"", {}};
  };
  const auto expected = stop_of(judged_by_host());
  EXPECT_TRUE(contains(expected.first, "step 3: loss is ")) << expected.first;
  EXPECT_TRUE(contains(expected.first, "not finite in ")) << expected.first;
  EXPECT_EQ(stop_of(judged_by_device()), expected);
}

TEST_F(DeviceSteps, GoOnBehindOneThatWasSkipped) {
  constexpr int64_t kBefore = 4;
  const SharedDirectory shared(world().communicator());
  const MemoryDataset dataset = dataset_of(scenario(), grid());
  const TinyRunOptions options = judged_by_device();
  TinyRun whole(world().communicator(), make_stand_in_collectives, dataset, options);
  plant(whole, dataset, options);
  TinyResult before, expected, got;
  whole.train(kBefore, before);
  const std::string path = write_checkpoint(
      whole.engine(), whole.control(),
      {.directory = shared.path(), .run_id = "run-1", .position = whole.position(), .deck = ""});
  whole.train(kSteps - kBefore, expected);
  shared.barrier();

  TinyRun again(world().communicator(), make_stand_in_collectives, dataset, options);
  again.position() = read_checkpoint(again.engine(), again.control(), *open_state(path));
  EXPECT_EQ(again.position().optimizer_step, kBefore - 1);
  again.train(kSteps - kBefore, got);
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(again.weights(), whole.weights());
  EXPECT_EQ(again.position(), whole.position());
}

}  // namespace
}  // namespace zea::testing::test_device_steps
