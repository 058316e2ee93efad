// SPDX-License-Identifier: Apache-2.0
// Dropout of adapters' inputs, of residual paths and of embeddings: drawn while training alone, the
// same on every layout, however tokens are packed and whatever is recomputed, and where a run
// goes on.
#include <gtest/gtest.h>

#include "support/axis_layouts.hpp"
#include "support/compared_run.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"

namespace zea::testing::test_dropout {
namespace {

/// Adapters of row and of column linears, in every module, and the language model's own dropout.
TinyRunOptions adapted(TinyRunOptions run, std::optional<double> dropout) {
  run.deck.llm.lora = {.targets = {"q_proj", "o_proj", "mlp.*"}, .rank = 3, .dropout = dropout};
  run.deck.llm.dropout = dropout;
  run.deck.encoders["vision"].lora = {.targets = {"*"}, .rank = 2, .dropout = dropout};
  run.steps = kStepsBeforeStop + kStepsAfterStop;
  return run;
}

TinyRunOptions on_one_rank(std::optional<double> dropout) {
  return adapted(run_on({.name = "alone"}, "fp64"), dropout);
}

class DropoutRuns : public ::testing::Test {
 protected:
  TinyResult run_alone(const TinyRunOptions& options) const {
    return run_tiny(alone_, make_mpi_collectives, dataset_, options);
  }

  const Communicator ranks_ = first_ranks(kAxisRanks);
  const Communicator alone_ = ranks_.split(ranks_.rank(), "alone");
  const MemoryDataset dataset_ = axis_dataset();
};

TEST_F(DropoutRuns, DropWhileTrainingAlone) {
  TinyRunOptions plain = on_one_rank({}), zero = on_one_rank(0), half = on_one_rank(0.5);
  for (TinyRunOptions* run : {&plain, &zero, &half}) run->evaluates = true;
  const TinyResult without = run_alone(plain), of_zero = run_alone(zero), with = run_alone(half);
  EXPECT_EQ(without.losses, of_zero.losses);
  EXPECT_EQ(without.weights, of_zero.weights);
  EXPECT_GT(std::abs(with.losses[0] - without.losses[0]), 1e-4);

  plain.steps = half.steps = 0;
  EXPECT_EQ(run_alone(half).eval_loss, run_alone(plain).eval_loss);
}

TEST_F(DropoutRuns, DrawAnewForEachStepAndSeed) {
  TinyRunOptions still = on_one_rank(0.5);
  still.deck.optim.lr = 0;
  still.deck.data.shuffle = false;
  still.deck.schedule.global_batch = static_cast<int64_t>(dataset_.index().size());
  const std::vector<double> losses = run_alone(still).losses;
  EXPECT_NE(losses[0], losses[1]);  // of the same samples and weights

  ++still.deck.run.seed;
  EXPECT_NE(run_alone(still).losses[0], losses[0]);
}

TEST_F(DropoutRuns, DrawTheSameHoweverTokensArePacked) {
  const TinyRunOptions options = on_one_rank(0.5);
  const TinyResult expected = run_alone(options);
  for (const bool recomputes : {false, true}) {
    TinyRunOptions other = options;
    other.deck.data.row_tokens = recomputes ? 64 : 100;
    other.deck.data.rows_per_microbatch = recomputes ? 1 : 3;
    if (recomputes) other.deck.model.activation_checkpointing = AutoOption::of_count(1);
    const TinyResult got = run_alone(other);
    EXPECT_LE(max_difference(got.weights, expected.weights), kSameTraining);
  }
}

TEST_F(DropoutRuns, AreTheSameOnEveryLayoutAndWhereARunGoesOn) {
  const SharedDirectory shared(world().communicator());
  const TinyResult expected = run_alone(on_one_rank(0.5));
  for (const AxisLayout& layout : kAxisLayouts) {
    SCOPED_TRACE(layout.name);
    const TinyRunOptions options = adapted(run_on(layout, "fp64"), 0.5);
    const TinyResult got = run_tiny(ranks_, make_mpi_collectives, dataset_, options);
    EXPECT_LE(max_difference(got.weights, expected.weights), kSameTraining);
    for (size_t step = 0; step < expected.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step], expected.losses[step], kSameTraining);
    const StoppedRun stopped =
        run_through(ranks_, make_mpi_collectives, dataset_, options, shared / layout.name);
    expect_resumes(ranks_, make_mpi_collectives, dataset_, options, stopped, 0);
  }
}

}  // namespace
}  // namespace zea::testing::test_dropout
