// SPDX-License-Identifier: Apache-2.0
// Reported seconds of a step with found_inf on the device: the device's time if the device is
// behind, else the host's, with the update and without the time between steps.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <utility>

#include "batch/make_microbatch.hpp"
#include "core/system.hpp"
#include "device/device.hpp"
#include "device/kernels.hpp"
#include "device/torch_device.hpp"
#include "support/grid_scenarios.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_run.hpp"
#include "train/training_data.hpp"

namespace zea::testing::test_device_step_seconds {
namespace {

constexpr double kLong = 0.5;  // seconds, long compared with a tiny step

void sleep_long() {
  std::this_thread::sleep_for(std::chrono::duration<double>(kLong));
}

/// Work of the device that takes long, and that the host does not wait for.
void launch_long_work() {
  device().compute().push_aside(sleep_long);
}

/// Steps of one rank alone: with other ranks the stand-in's host waits for each message.
class Steps {
 public:
  explicit Steps(bool by_host = false)
      : dataset_(dataset_of(scenario(), one_rank_like({}))),
        run_(world().communicator(), make_stand_in_collectives, dataset_, options(by_host)),
        optimizer_(run_.engine()),
        step_(run_.engine(), optimizer_, run_.control(), [this] { call(in_update); }) {
    const Plan& plan = run_.engine().plan();
    for (int64_t number = 0; number < kSteps; ++number) {
      plans_.push_back(
          plan.rank_step(plan.step_plan(number, {0, 1, 2, 3, 4, 5, 6}, dataset_.index()), 0));
      for (const MicrobatchPlan& part : plans_.back().microbatches)
        microbatches_[number].push_back(
            make_microbatch(load_microbatch(dataset_, loading_on(plan, 0), part.samples),
                            plan.model, run_.engine().microbatch_options()));
    }
    EXPECT_EQ(step_.is_checked_on_device(), !by_host);
  }

  /// Called once each: at the start of the next pass, and before the next update is launched.
  std::function<void()> in_walk, in_update;

  void begin() { step_.begin(); }
  std::optional<StepReport> run() {
    const int64_t number = done_++;
    return step_.run(plans_.at(number), microbatches_[number], 0, {}, run_.position());
  }
  std::optional<StepReport> finish() { return step_.finish(run_.position()); }
  /// Returns the seconds of the step before, and of the last one.
  std::pair<double, double> run_last() {
    const std::optional<StepReport> before = run(), last = finish();
    EXPECT_TRUE(before && last);
    if (!before || !last) return {};
    return {before->seconds, last->seconds};
  }

 private:
  static constexpr int64_t kSteps = 2;

  static const GridScenario& scenario() { return grid_scenarios().front(); }
  static void call(std::function<void()>& once) {
    if (const auto now = std::exchange(once, nullptr)) now();
  }
  TinyRunOptions options(bool by_host) {
    TinyRunOptions run = run_of(scenario(), one_rank_like({}));
    run.deck.schedule.steps = kSteps;
    if (by_host) run.deck.optim.spike_deviations = 1e6;
    run.device = stand_in_device();
    run.run_unit = [this](const UnitArguments& given) {
      call(in_walk);
      return zea::run_unit(given);
    };
    return run;
  }

  const MemoryDataset dataset_;
  TinyRun run_;
  Optimizer optimizer_;
  TrainStep step_;
  std::vector<RankStep> plans_;
  std::vector<Microbatch> microbatches_[kSteps];
  int64_t done_ = 0;
};

class DeviceStepSeconds : public ::testing::Test {
 protected:
  void SetUp() override { have_kernels(true); }
  void TearDown() override {
    have_kernels(false);
    EXPECT_TRUE(device().take_faults().empty());
  }
};

TEST_F(DeviceStepSeconds, AreTheDevicesWhereThatIsBehind) {
  Steps steps;
  std::shared_ptr<Mark> runs, is_over;
  steps.in_walk = [&] {
    runs = device().record(device().compute());
    is_over = device().compute().hold_aside();
  };
  const Stopwatch whole;
  steps.begin();
  EXPECT_FALSE(steps.run());  // launched, while the device has not even begun
  steps.begin();
  runs->wait();
  sleep_long();
  is_over->reach();
  const auto [first, second] = steps.run_last();
  EXPECT_GE(first, kLong) << "though the host was there at once";
  EXPECT_LE(second, whole.seconds() - kLong) << "though the host waited in it for the first";
}

TEST_F(DeviceStepSeconds, AreTheHostsWhereThatIsBehind) {
  Steps steps;
  const Stopwatch whole;
  steps.begin();
  device().compute().drain();
  sleep_long();  // loads
  EXPECT_FALSE(steps.run());
  device().compute().drain();
  sleep_long();  // evaluates
  steps.begin();
  const auto [first, second] = steps.run_last();
  EXPECT_GE(first, kLong) << "with the loading";
  EXPECT_LE(first + second, whole.seconds() - kLong) << "without what was between them";
}

TEST_F(DeviceStepSeconds, HaveTheUpdateAndNoWorkFromBetweenSteps) {
  Steps steps;
  steps.in_update = launch_long_work;
  const Stopwatch whole;
  steps.begin();
  EXPECT_FALSE(steps.run());
  launch_long_work();  // reads what a checkpoint has
  steps.begin();
  const auto [first, second] = steps.run_last();
  EXPECT_GE(first, kLong) << "with the update";
  EXPECT_LE(first + second, whole.seconds() - kLong) << "without what was between them";
}

TEST_F(DeviceStepSeconds, AreTheHostsWhereThatJudges) {
  Steps steps(/*by_host=*/true);
  steps.in_update = sleep_long;
  steps.begin();
  sleep_long();
  EXPECT_FALSE(steps.run());
  const std::optional<StepReport> known = steps.finish();
  ASSERT_TRUE(known);
  EXPECT_GE(known->seconds, 2 * kLong) << "with the loading and the update";
}

}  // namespace
}  // namespace zea::testing::test_device_step_seconds
