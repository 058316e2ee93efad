// SPDX-License-Identifier: Apache-2.0
#include "train/step_guard.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "layout/optimizer_spec.hpp"

namespace zea::test_step_guard {
namespace {

/// Losses 1, 3, 1, 3, ...: mean 2, deviation 1; norms ten times that.
StepHistory full_window(const OptimOptions& optim) {
  StepHistory history;
  for (int64_t i = 0; i < optim.spike_window; ++i) {
    const double loss = i % 2 == 0 ? 1 : 3;
    accept(optim, loss, 10 * loss, history);
  }
  return history;
}

OptimOptions guarded() {
  OptimOptions optim;
  optim.spike_deviations = 4;
  optim.spike_window = 6;
  return optim;
}

TEST(StepGuard, LeavesToTheDeviceWhatItCanJudge) {
  Plan plan;
  plan.shardings.resize(2);
  for (const OptimizerSpec& optimizer : optimizers()) {
    plan.optimizer = optimizer;
    EXPECT_EQ(is_checked_on_device(plan, true), optimizer.kind != OptimizerKind::Muon)
        << optimizer.kind.name();
  }
  plan.optimizer = optimizers().front();
  EXPECT_FALSE(is_checked_on_device(plan, false)) << "the host, or libtorch's operations";
  plan.shardings[1].offloads = true;
  EXPECT_FALSE(is_checked_on_device(plan, true));
  plan.shardings[1].offloads = false;
  plan.options.optim.spike_deviations = 4;
  EXPECT_FALSE(is_checked_on_device(plan, true));
}

TEST(StepGuard, KnowsWhatIsAskedForAtOnce) {
  Options options;
  options.schedule.steps = 11;
  options.checkpoint.every = AutoOption::of_count(4);
  options.eval.every = 6;
  std::vector<int64_t> asked;
  for (int64_t step = 1; step <= 11; ++step)
    if (needs_report_now(options, step)) asked.push_back(step);
  EXPECT_EQ(asked, (std::vector<int64_t>{4, 6, 8, 11}));
}

TEST(StepGuard, FindsWhatLiesBeyondItsDeviations) {
  const OptimOptions optim = guarded();
  const StepHistory history = full_window(optim);

  EXPECT_EQ(find_spike(optim, history, 6, 60), "") << "at the bound";
  EXPECT_EQ(find_spike(optim, history, std::nextafter(6, 7), 60),
            "loss is 6, above 2 (mean) + 4 x 1 (deviation) of 6 accepted steps");
  EXPECT_EQ(
      find_spike(optim, history, 2, 60.5),
      "the gradient's norm is 60.5, above 20 (mean) + 4 x 10 (deviation) of 6 accepted steps");
  EXPECT_EQ(find_spike(optim, history, -100, 0), "") << "a fall is no spike";
}

TEST(StepGuard, JudgesNothingBeforeItsWindowIsFull) {
  const OptimOptions optim = guarded();
  StepHistory history = full_window(optim);
  history.losses.pop_back();
  history.grad_norms.pop_back();

  EXPECT_EQ(find_spike(optim, history, 1e9, 1e9), "");
}

TEST(StepGuard, LooksBackOnItsWindowAlone) {
  const OptimOptions optim = guarded();
  StepHistory history{{1e6, 1e6, 1e6}, {1e6, 1e6, 1e6}, 3};
  for (int i = 0; i < 6; ++i) accept(optim, 1, 1, history);

  EXPECT_EQ(history, (StepHistory{{1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}, 0}));
}

TEST(StepGuard, KeepsNothingWhereItIsOff) {
  StepHistory history{{1, 2}, {1, 2}, 0};
  accept({}, 1, 1, history);

  EXPECT_EQ(history, StepHistory());
  EXPECT_EQ(find_spike({}, full_window(guarded()), 1e9, 1e9), "");
}

}  // namespace
}  // namespace zea::test_step_guard
