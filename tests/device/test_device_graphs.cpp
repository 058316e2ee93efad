// SPDX-License-Identifier: Apache-2.0
// Graphs of steps (run.cuda_graphs): the same bits as steps that run action by action, with any
// change from step to step except the shape; launched by one call, without a wait.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "device/device.hpp"
#include "device/kernels.hpp"
#include "device/planted_loss.hpp"
#include "device/torch_device.hpp"
#include "parallel/device_memory.hpp"
#include "support/grid_scenarios.hpp"
#include "support/made_up_models.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/tiny_run.hpp"
#include "train/prefetched_steps.hpp"
#include "train/training_data.hpp"

namespace zea::testing::test_device_graphs {
namespace {

constexpr int64_t kSamples = 4, kSteps = 8;  // of a step; of a run

class DeviceGraphs : public ::testing::Test {
 protected:
  void SetUp() override { have_kernels(true); }
  void TearDown() override { have_kernels(false); }
};

/// Its adapters drop inputs.
const GridScenario& with_dropout() {
  return *std::ranges::find_if(grid_scenarios(), [](const GridScenario& one) {
    Options deck;
    if (one.set) one.set(deck);
    return !one.gpt2 && one.other_config == nullptr && deck.llm.lora.dropout > 0;
  });
}

/// Heads of 8 dimensions, for which the library's attention takes rows of segments in bf16.
const GridScenario kHeads{.name = "heads", .model = {.head_dim = 8}},
    kWindows{.name = "windows", .model = {.head_dim = 8}, .remake = see_windows};

Grid grid_of(const char* strategy) {
  const Grid both{{1, 1}, strategy, 2};
  return world().communicator().size() == 1 ? one_rank_like(both) : both;
}

/// Steps of `shapes` shapes of samples, each for so many steps in turn, of tokens and pixels that
/// no two have together.
MemoryDataset dataset(const ModelSpec& model, int64_t shapes, int64_t repeats) {
  std::vector<Sample> samples;
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto shape = static_cast<uint64_t>(step / repeats % shapes);
    const MemoryDataset like = make_tiny_dataset(model, kSamples, {1, 0, 2}, 1 + shape);
    for (int64_t id = 0; id < kSamples; ++id) {
      Sample& sample = samples.emplace_back(like.read(id));
      for (int32_t& token : sample.tokens) {
        const auto shifted = static_cast<int32_t>((token + step) % model.decoder.vocabulary);
        if (!model.is_placeholder(token) && !model.is_placeholder(shifted)) token = shifted;
      }
      for (Item& item : sample.items)
        for (uint8_t& byte : item.bytes) byte = static_cast<uint8_t>(byte + 31 * step);
    }
  }
  return MemoryDataset(std::move(samples), item_kinds(model));
}

struct GraphedRun {
  const char* strategy = "full_shard";
  const GridScenario* scenario = &grid_scenarios().front();
  const char* preset = "fp64";
  int64_t graphs = 2;   ///< run.cuda_graphs
  int64_t shapes = 1;   ///< of the data
  int64_t repeats = 1;  ///< of steps of a shape, one after the other

  TinyRunOptions options() const {
    TinyRunOptions run = run_of(*scenario, grid_of(strategy));
    run.deck.precision.preset = preset;
    run.deck.schedule = {.steps = kSteps, .global_batch = kSamples};
    run.deck.data.shuffle = false;
    run.deck.optim.on_nonfinite = "skip";
    run.device = stand_in_device();
    run.run_unit = planted_unit;
    // A deck cannot ask for them on the host's device, which the plan takes this for.
    run.adjust = [shapes = graphs](Plan& plan) { plan.options.run.cuda_graphs = shapes; };
    return run;
  }
};

struct Trained {
  TinyResult result = {};
  std::map<std::string, Tensors> states = {};
  TrainPosition position = {};
  Traffic sent = {};

  explicit Trained(const GraphedRun& of, int64_t losses_until_fault = 0) {
    const TinyRunOptions options = of.options();
    const MemoryDataset data =
        dataset(model_of(options.deck, options.config_json), of.shapes, of.repeats);
    TinyRun run(world().communicator(), make_stand_in_collectives, data, options);
    const bool is_last = run.control().rank() == run.control().size() - 1;
    plant_loss(is_last ? losses_until_fault : 0);
    run.train(kSteps, result);
    plant_loss(0);
    result.weights = run.weights();
    states = run.states();
    position = run.position();
    sent = run.engine().mesh().traffic();
  }
};

void expect_same(const Trained& got, const Trained& expected) {
  ASSERT_EQ(got.result.losses.size(), expected.result.losses.size());
  for (size_t step = 0; step < got.result.losses.size(); ++step) {
    EXPECT_EQ(std::isnan(got.result.losses[step]), std::isnan(expected.result.losses[step]));
    if (std::isnan(expected.result.losses[step])) continue;
    EXPECT_EQ(got.result.losses[step], expected.result.losses[step]) << step;
    EXPECT_EQ(got.result.grad_norms[step], expected.result.grad_norms[step]) << step;
  }
  EXPECT_EQ(got.result.weights, expected.result.weights);
  EXPECT_EQ(got.states, expected.states);
  EXPECT_EQ(got.position, expected.position);
  EXPECT_EQ(got.sent, expected.sent);
}

void expect_counts(const TinyResult& result, int64_t eager, int64_t captured, int64_t replayed) {
  EXPECT_EQ(result.graphs.eager, eager);
  EXPECT_EQ(result.graphs.captured, captured);
  EXPECT_EQ(result.graphs.replayed, replayed);
}

TEST_F(DeviceGraphs, GiveTheBitsOfStepsWithoutThem) {
  for (const char* strategy : {"full_shard", "no_shard"})
    for (const GridScenario* scenario : {&grid_scenarios().front(), &with_dropout(), &kWindows}) {
      SCOPED_TRACE(std::string(strategy) + ", " + scenario->name);
      const Trained got({.strategy = strategy, .scenario = scenario}),
          expected({.strategy = strategy, .scenario = scenario, .graphs = 0});
      expect_same(got, expected);
      expect_counts(got.result, 1, 1, kSteps - 2);
      // Every step has other data: a graph does not compute with the captured data.
      for (size_t step = 1; step < got.result.losses.size(); ++step)
        EXPECT_NE(got.result.losses[step], got.result.losses[step - 1]);
    }
  EXPECT_TRUE(device().take_faults().empty());
}

/// By attention over rows of segments, and sums in fp32 of products of bf16.
TEST_F(DeviceGraphs, GiveTheBitsOfStepsWithoutThemInBf16) {
  for (const char* strategy : {"full_shard", "no_shard"})
    for (const GridScenario* scenario : {&kHeads, &kWindows}) {
      SCOPED_TRACE(std::string(strategy) + ", " + scenario->name);
      device().take_launches();
      const Trained got({.strategy = strategy, .scenario = scenario, .preset = "bf16"});
      EXPECT_GT(device().take_launches()["addmm"], 0);
      const Trained expected(
          {.strategy = strategy, .scenario = scenario, .preset = "bf16", .graphs = 0});
      expect_same(got, expected);
      expect_counts(got.result, 1, 1, kSteps - 2);
    }
  EXPECT_TRUE(device().take_faults().empty());
}

TEST_F(DeviceGraphs, AreKeptOfTheLatestShapes) {
  const Trained expected({.graphs = 0, .shapes = 2}), one({.graphs = 1, .shapes = 2}),
      two({.graphs = 2, .shapes = 2});
  expect_same(one, expected);
  expect_same(two, expected);
  expect_counts(one.result, kSteps, 0, 0);
  expect_counts(two.result, 2, 2, kSteps - 4);
}

/// A graph is captured into the pool of one that is gone, which the device's allocator refuses if
/// nobody kept the pool.
TEST_F(DeviceGraphs, FollowEachOther) {
  const Trained got({.graphs = 1, .shapes = 2, .repeats = 2}),
      expected({.graphs = 0, .shapes = 2, .repeats = 2});
  expect_same(got, expected);
  expect_counts(got.result, 4, 4, 0);
  const c10::MempoolId_t pool = new_graph_pool();
  const c10::Stream stream = c10::impl::VirtualGuardImpl(stand_in_device().type())
                                 .getStreamFromGlobalPool(stand_in_device());
  std::make_unique<GraphMemory>(pool, stream).reset();
  EXPECT_ANY_THROW(GraphMemory(pool, stream));
}

/// Its loss is not finite: the step that follows finds nothing of it.
TEST_F(DeviceGraphs, GoOnBehindAStepThatIsSkipped) {
  const Trained got({}, 1), expected({.graphs = 0}, 1);
  EXPECT_TRUE(std::isnan(got.result.losses[0]));
  EXPECT_EQ(got.position.optimizer_step, kSteps - 1);
  expect_same(got, expected);
}

TEST_F(DeviceGraphs, GoOnBehindACheckpoint) {
  constexpr int64_t kBefore = 4;
  const SharedDirectory shared(world().communicator());
  const TinyRunOptions options = GraphedRun{}.options();
  const MemoryDataset data = dataset(model_of(options.deck, options.config_json), 1, 1);
  TinyRun whole(world().communicator(), make_stand_in_collectives, data, options);
  TinyResult before, expected, got;
  whole.train(kBefore, before);
  const std::string path = write_checkpoint(
      whole.engine(), whole.control(),
      {.directory = shared.path(), .run_id = "run-1", .position = whole.position(), .deck = ""});
  whole.train(kSteps - kBefore, expected);
  shared.barrier();

  TinyRun again(world().communicator(), make_stand_in_collectives, data, options);
  again.position() = read_checkpoint(again.engine(), again.control(), *open_state(path));
  again.train(kSteps - kBefore, got);
  expect_counts(got, 1, 1, kSteps - kBefore - 2);
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(again.weights(), whole.weights());
}

TEST_F(DeviceGraphs, AreLaunchedByOneCallWithoutAWait) {
  const TinyRunOptions options = GraphedRun{}.options();
  const MemoryDataset data = dataset(model_of(options.deck, options.config_json), 1, 1);
  TinyRun run(world().communicator(), make_stand_in_collectives, data, options);
  Optimizer optimizer(run.engine());
  TrainStep train_step(run.engine(), optimizer, run.control());
  const Plan& plan = run.engine().plan();
  const int rank = run.control().rank();
  const auto plan_step = [&](int64_t step) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < kSamples; ++i) ids.push_back(step * kSamples + i);
    return plan.rank_step(plan.step_plan(step, ids, data.index()), rank);
  };
  Loader loader(data, loading_on(plan, rank), plan_step, 0, 4, 2);
  PrefetchedSteps made_steps(loader, run.engine(), 0, 4);
  Launches eager, replayed;
  for (int64_t number = 1; number <= 4; ++number) {
    train_step.begin();
    PrefetchedStep made = made_steps.next();
    std::vector<Microbatch> microbatches;
    for (size_t m = 0; m < made.loaded.microbatches.size(); ++m)
      microbatches.push_back(made_steps.take(made, m));
    const int64_t awaited = device().times_awaited();
    device().take_launches();
    train_step.run(made.loaded.plan, microbatches, 0, {}, run.position());
    (number == 1 ? eager : replayed) = device().take_launches();
    const bool is_behind_another = number > 1;
    EXPECT_EQ(device().times_awaited() - awaited, is_behind_another ? 1 : 0)
        << "for the step before";
    EXPECT_EQ(replayed["graph"], is_behind_another ? 1 : 0);
  }
  train_step.finish(run.position());
  // The remaining launches are the microbatches' copies, the sums and the update.
  int64_t before = 0, after = 0;
  for (const auto& [name, times] : eager) before += times;
  for (const auto& [name, times] : replayed) after += times;
  EXPECT_GT(before, 10 * after);
}

}  // namespace
}  // namespace zea::testing::test_device_graphs
