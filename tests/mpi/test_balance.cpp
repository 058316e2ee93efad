// SPDX-License-Identifier: Apache-2.0
// Samples distributed by cost and in order train the same model, which is that of one rank; by cost
// no rank has much more work than another.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/mpi_main.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_run.hpp"

namespace zea::testing::test_balance {
namespace {

TinyRunOptions make_run(bool balance) {
  TinyRunOptions run;
  run.config_json = tiny_llava_config();
  run.steps = 3;
  run.evaluates = true;
  run.deck.precision.preset = "fp64";
  run.deck.data.row_tokens = 48;
  run.deck.data.balance = balance;
  run.deck.schedule = {.steps = 3, .global_batch = 12};
  return run;
}

/// Every fourth sample has three images, the others none.
MemoryDataset skewed_dataset(const TinyRunOptions& run) {
  return make_tiny_dataset(make_model_spec(run.config_json), 36, {3, 0, 0, 0}, 7);
}

TEST(Balance, ChangesNothingThatIsLearnt) {
  const TinyRunOptions balanced = make_run(true), in_turn = make_run(false);
  const MemoryDataset dataset = skewed_dataset(balanced);
  const Communicator all = testing::world().communicator();
  const Communicator alone = all.split(all.rank(), "alone");
  const TinyResult expected = run_tiny(alone, make_mpi_collectives, dataset, in_turn);

  for (const TinyRunOptions& run : {balanced, in_turn}) {
    const TinyResult got = run_tiny(all, make_mpi_collectives, dataset, run);
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(got.losses[step], expected.losses[step], 1e-10);
      EXPECT_NEAR(got.grad_norms[step], expected.grad_norms[step], 1e-10);
    }
    EXPECT_LE(max_difference(got.weights, expected.weights), 1e-10);
    EXPECT_NEAR(got.eval_loss, expected.eval_loss, 1e-10);
  }
}

TEST(Balance, IsWhatThePlanDistributes) {
  std::vector<int64_t> batch(12);
  for (size_t i = 0; i < batch.size(); ++i) batch[i] = static_cast<int64_t>(i);
  const auto most_images = [&](bool balance) {
    const TinyRunOptions run = make_run(balance);
    const Plan plan = make_plan(run.deck, run.config_json, 4);
    int64_t most = 0;
    for (const auto& microbatches :
         plan.step_plan(0, batch, skewed_dataset(run).index()).replicas) {
      int64_t images = 0;
      for (const MicrobatchPlan& part : microbatches) images += part.items.of(0);
      most = std::max(most, images);
    }
    return most;
  };

  EXPECT_EQ(most_images(true), 3);
  EXPECT_EQ(most_images(false), 9);
}

}  // namespace
}  // namespace zea::testing::test_balance
