// SPDX-License-Identifier: Apache-2.0
// Steps that the guard skips: the same on every layout, decided by a loss that one rank has
// planted; masters and states stay unchanged; exact after a resume in the middle of them.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "deck/learning_rate.hpp"
#include "io/checkpoint.hpp"
#include "support/axis_layouts.hpp"
#include "support/files.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"

namespace zea::testing::test_skipped_steps {
namespace {

constexpr double kTolerance = 1e-10;
constexpr int64_t kWindow = 3;

/// The factor of this rank's losses in the current steps.
double g_factor = 1;

UnitOutput planted_unit(const UnitArguments& call) {
  UnitOutput made = run_unit(call);
  if (g_factor != 1 && made.loss.defined()) made.loss = made.loss * g_factor;
  return made;
}

TinyRunOptions guarded(TinyRunOptions run) {
  run.deck.optim.on_nonfinite = "skip";
  run.deck.optim.spike_deviations = 20;
  run.deck.optim.spike_window = kWindow;
  run.deck.optim.max_skips = 2;
  run.deck.schedule.steps = 12;
  run.run_unit = planted_unit;
  return run;
}

/// Where every rank has samples of its own, the last one alone has the fault.
void train(TinyRun& run, int64_t steps, double factor, TinyResult& result) {
  const Collectives& control = run.control();
  const bool has_fault =
      control.rank() == control.size() - 1 || run.engine().plan().mesh.dp_shard < control.size();
  g_factor = has_fault ? factor : 1;
  try {
    run.train(steps, result);
  } catch (...) {
    g_factor = 1;
    throw;
  }
  g_factor = 1;
}

/// Five steps, one that is not finite, one that spikes, two more.
TinyResult run_with_faults(const Communicator& ranks, const MemoryDataset& dataset,
                           const TinyRunOptions& options) {
  TinyRun run(ranks, make_mpi_collectives, dataset, options);
  TinyResult result;
  train(run, 5, 1, result);
  const Tensors before = run.weights();
  const std::map<std::string, Tensors> states = run.states();
  train(run, 1, NAN, result);
  EXPECT_TRUE(std::isnan(result.losses.back()));
  EXPECT_EQ(run.position().history.skipped_in_a_row, 1);
  train(run, 1, 1e4, result);
  EXPECT_EQ(run.position().history.skipped_in_a_row, 2);
  EXPECT_EQ(run.weights(), before);
  EXPECT_EQ(run.states(), states);
  EXPECT_EQ(run.position().optimizer_step, 5);
  train(run, 2, 1, result);
  EXPECT_EQ(run.position().history.skipped_in_a_row, 0);
  EXPECT_EQ(run.position().step, 9);
  EXPECT_EQ(run.position().optimizer_step, 7);
  EXPECT_EQ(run.position().history.losses,
            (std::vector<double>{result.losses[4], result.losses[7], result.losses[8]}));
  result.weights = run.weights();
  return result;
}

TEST(SkippedSteps, AreTheSameOnEveryLayout) {
  const Communicator ranks = first_ranks(kAxisRanks);
  const MemoryDataset dataset = axis_dataset();
  const Communicator alone = ranks.split(ranks.rank(), "alone");
  const TinyResult expected =
      run_with_faults(alone, dataset, guarded(run_on({.name = "alone"}, "fp64")));
  for (const AxisLayout& layout :
       {AxisLayout{"full_shard"}, AxisLayout{.name = "tp and cp", .tp = 2, .cp = 2},
        AxisLayout{.name = "pp, zero bubble", .pp = 2, .schedule = "zero_bubble"}}) {
    SCOPED_TRACE(layout.name);
    const TinyResult got = run_with_faults(ranks, dataset, guarded(run_on(layout, "fp64")));
    EXPECT_LE(max_difference(got.weights, expected.weights), kTolerance);
    for (const size_t step : {0, 1, 2, 3, 4, 7, 8})
      EXPECT_NEAR(got.losses[step], expected.losses[step], kTolerance);
  }
}

/// Returns a run of one rank whose steps all have the same samples.
TinyRunOptions repeating(TinyRunOptions run, int64_t samples) {
  run = guarded(std::move(run));
  run.deck.data.shuffle = false;
  run.deck.schedule.global_batch = samples;
  run.deck.optim.decay = "linear";
  run.deck.optim.clip_norm = 0;
  run.deck.optim.weight_decay = 0;
  return run;
}

/// A skipped step counts for the learning rate, but not for the bias correction of the moments.
TEST(SkippedSteps, AreStepsOfTheScheduleAndNoUpdates) {
  const MemoryDataset dataset = axis_dataset();
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  const TinyRunOptions options =
      repeating(run_on({.name = "alone"}, "fp64"), std::ssize(dataset.index()));
  const auto second_update = [&](bool skips) {
    TinyRun run(alone, make_mpi_collectives, dataset, options);
    TinyResult result;
    train(run, 3, 1, result);
    if (skips) train(run, 1, NAN, result);
    const Tensors before = run.weights();
    train(run, 1, 1, result);
    Tensors update = run.weights();
    for (auto& [name, values] : update)
      for (size_t i = 0; i < values.size(); ++i) values[i] -= before.at(name)[i];
    return update;
  };
  const auto rate = [&](int64_t step) {
    return learning_rate(options.deck.optim, step, options.deck.schedule.steps);
  };
  Tensors expected = second_update(false);
  for (auto& [name, values] : expected)
    for (double& value : values) value *= rate(5) / rate(4);
  EXPECT_LT(rate(5), rate(4));
  EXPECT_LE(max_difference(second_update(true), expected), 1e-14);
}

TEST(SkippedSteps, LeaveTheSelectionBiasesOfExperts) {
  TinyRunOptions run_options =
      stopped_run_options(with_biased_experts(tiny_llava_config({.kv_heads = 2})));
  run_options.deck.optim.router_bias_update_rate = 0.01;
  const MemoryDataset dataset =
      make_tiny_dataset(make_model_spec(run_options.config_json), 16, {1, 0, 2}, 5);
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  TinyRun run(alone, make_mpi_collectives, dataset, guarded(run_options));
  const std::string bias = "language_model.model.layers.1.mlp.gate.e_score_correction_bias";
  TinyResult result;
  train(run, 1, 1, result);
  const Tensors before = run.weights();
  train(run, 1, NAN, result);
  EXPECT_EQ(run.weights(), before);
  train(run, 1, 1, result);
  EXPECT_NE(run.weights().at(bias), before.at(bias));
}

TEST(SkippedSteps, GoOnBitByBit) {
  const SharedDirectory shared(world().communicator());
  const MemoryDataset dataset = axis_dataset();
  const TinyRunOptions options = guarded(run_on({.name = "tp", .tp = 2}, "fp32"));
  const auto after_stop = [&](TinyRun& run) {
    TinyResult result;
    train(run, 1, 1e4, result);  // the second in a row: judged by the window of the first part
    EXPECT_EQ(run.position().history.skipped_in_a_row, 2);
    EXPECT_EQ(run.position().optimizer_step, 4);
    train(run, 3, 1, result);
    return std::pair(result.losses, run.weights());
  };
  TinyRun whole(world().communicator(), make_mpi_collectives, dataset, options);
  TinyResult before;
  train(whole, 4, 1, before);
  train(whole, 1, NAN, before);
  const std::string path = write_checkpoint(
      whole.engine(), whole.control(),
      {.directory = shared.path(), .run_id = "run-1", .position = whole.position(), .deck = ""});
  const auto expected = after_stop(whole);

  TinyRun again(world().communicator(), make_mpi_collectives, dataset, options);
  again.position() = read_checkpoint(again.engine(), again.control(), CheckpointSource(path));

  EXPECT_EQ(after_stop(again), expected);
  EXPECT_EQ(again.position(), whole.position());
}

TEST(SkippedSteps, EndTheRunWhereTheyAreTooMany) {
  const MemoryDataset dataset = axis_dataset();
  const TinyRunOptions options = guarded(run_on({.name = "full_shard"}, "fp64"));
  TinyRun run(world().communicator(), make_mpi_collectives, dataset, options);
  TinyResult result;
  const auto stop_of = [&](int64_t steps, double factor) -> std::string {
    try {
      train(run, steps, factor, result);
    } catch (const NonFiniteError& error) {
      return error.what();
    }
    return "";
  };

  EXPECT_EQ(stop_of(2, NAN), "");
  EXPECT_EQ(stop_of(2, 1), "") << "counts anew";
  EXPECT_EQ(stop_of(2, NAN), "");
  const std::string said = stop_of(1, NAN);
  EXPECT_TRUE(contains(said, "step 7: loss is ")) << said;
  EXPECT_TRUE(contains(said, "2 steps in a row were skipped before it (optim.max_skips)")) << said;
  run.position().history.skipped_in_a_row =
      5;  // of a run that may skip more, and goes on with less
  EXPECT_TRUE(contains(stop_of(1, NAN), "in a row"));
}

}  // namespace
}  // namespace zea::testing::test_skipped_steps
