// SPDX-License-Identifier: Apache-2.0
#include "deck/learning_rate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "core/error.hpp"
#include "deck/deck.hpp"

namespace zea::test_learning_rate {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Options options_of(const std::vector<std::string>& overrides) {
  return parse_deck("[model]\nweights = \"w.h5\"\n[data]\ntrain = \"t.h5\"\n", "x", overrides);
}

std::string faults_of(const std::vector<std::string>& overrides) {
  try {
    options_of(overrides);
  } catch (const DeckError& error) {
    return error.what();
  }
  return "";
}

double rate(const Options& options, int64_t step) {
  return learning_rate(options.optim, step, options.schedule.steps);
}

TEST(LearningRate, RisesLinearlyThenFallsTowardsTheLeast) {
  OptimOptions optim;
  optim.lr = 1;
  optim.min_lr = 0.1;
  optim.warmup_steps = 4;
  for (const char* decay : {"cosine", "linear"}) {
    optim.decay = decay;
    EXPECT_DOUBLE_EQ(learning_rate(optim, 1, 104), 0.25);
    EXPECT_DOUBLE_EQ(learning_rate(optim, 4, 104), 1);
    EXPECT_DOUBLE_EQ(learning_rate(optim, 5, 104), 1) << "transformers' first after its warm-up";
    EXPECT_NEAR(learning_rate(optim, 55, 104), 0.55, 1e-12) << "half way, both are half way down";
    EXPECT_GT(learning_rate(optim, 104, 104), 0.1);
    EXPECT_LT(learning_rate(optim, 104, 104), 0.11);
  }
  EXPECT_DOUBLE_EQ(learning_rate(optim, 104, 104), 0.1 + 0.9 / 100) << "linear";
  optim.decay = "constant";
  EXPECT_DOUBLE_EQ(learning_rate(optim, 104, 104), 1);
}

TEST(LearningRate, NoStepHasRateZero) {
  for (const std::string decay : {"cosine", "linear", "constant", "wsd", "inverse_sqrt"})
    for (const std::string warmup : {"0", "1", "0.1"})
      for (const int64_t steps : {1, 2, 3, 30}) {
        if (decay == "wsd" && steps == 1) continue;  // no room for a fall after the warm-up
        const Options options =
            options_of({"optim.decay=" + decay, "schedule.steps=" + std::to_string(steps),
                        "optim.warmup_steps=" + warmup,
                        decay == "wsd" ? "optim.decay_steps=1" : "optim.decay_steps=0"});
        for (int64_t step = 1; step <= steps; ++step)
          EXPECT_GT(rate(options, step), 0) << decay << ", step " << step << " of " << steps;
        EXPECT_DOUBLE_EQ(rate(options, 1 + options.optim.warmup_in(steps)), 1e-3) << decay;
      }
  EXPECT_EQ(rate(options_of({"schedule.steps=1"}), 1), 1e-3);
}

TEST(LearningRate, LastStepsOfCosineAreTransformers) {
  const Options options = options_of({"schedule.steps=10", "optim.warmup_steps=2"});
  for (const int index : {2, 5, 9})  // counted from 0
    EXPECT_DOUBLE_EQ(rate(options, index + 1),
                     1e-3 * 0.5 * (1 + std::cos(std::numbers::pi * (index - 2) / 8)));
}

TEST(LearningRate, IsStableUntilItsLastSteps) {
  OptimOptions optim;
  optim.lr = 2;
  optim.min_lr = 0.5;
  optim.warmup_steps = 10;
  optim.decay = "wsd";
  optim.decay_steps = 20;
  EXPECT_DOUBLE_EQ(learning_rate(optim, 5, 100), 1);
  for (const int64_t step : {10, 11, 50, 80, 81}) EXPECT_EQ(learning_rate(optim, step, 100), 2);
  for (int64_t step = 81; step <= 100; ++step)
    EXPECT_DOUBLE_EQ(learning_rate(optim, step, 100),
                     0.5 + 1.5 * static_cast<double>(101 - step) / 20);
  EXPECT_EQ(learning_rate(optim, 101, 100), learning_rate(optim, 100, 100)) << "past the end";
}

TEST(LearningRate, FallsWithTheRootOfTheStep) {
  OptimOptions optim;
  optim.lr = 3;
  optim.min_lr = 0.1;
  optim.warmup_steps = 16;
  optim.decay = "inverse_sqrt";
  EXPECT_DOUBLE_EQ(learning_rate(optim, 8, 1000), 1.5);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 16, 1000), 3);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 65, 1000), 1.5);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 401, 1000), 0.6);
  EXPECT_EQ(learning_rate(optim, 1000000, 1000000), 0.1) << "the least";
  EXPECT_EQ(learning_rate(optim, 100, 100), learning_rate(optim, 100, 1000)) << "knows no end";
  optim.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(optim, 1, 1000), 3);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 9, 1000), 1);
}

TEST(LearningRate, AWarmUpBelowOneIsAShare) {
  EXPECT_EQ(options_of({"optim.warmup_steps=0.1"}).optim.warmup_in(25), 3) << "rounded up";
  EXPECT_EQ(options_of({"optim.warmup_steps=0.1"}).optim.warmup_in(1), 1);
  EXPECT_EQ(options_of({"optim.warmup_steps=1"}).optim.warmup_in(25), 1);
  EXPECT_EQ(faults_of({"optim.warmup_steps=0.9", "schedule.steps=1"}), "");
  EXPECT_TRUE(contains(faults_of({"optim.warmup_steps=2.5"}), "or a share below 1"));
  EXPECT_TRUE(contains(faults_of({"optim.warmup_steps=5", "schedule.steps=4"}),
                       "optim.warmup_steps = 5 is above schedule.steps = 4"));
}

TEST(LearningRate, AScheduleMayEndBeforeTheRun) {
  const Options options =
      options_of({"schedule.steps=30", "optim.decay_until=10", "optim.warmup_steps=0.2"});
  const Options shorter = options_of({"schedule.steps=10", "optim.warmup_steps=0.2"});
  for (int64_t step = 1; step <= 10; ++step) EXPECT_EQ(rate(options, step), rate(shorter, step));
  EXPECT_EQ(rate(options, 30), rate(shorter, 10));
  EXPECT_TRUE(contains(faults_of({"optim.decay_until=10", "optim.decay=constant"}),
                       "optim.decay_until = 10 changes nothing"));
  EXPECT_TRUE(contains(faults_of({"optim.decay_until=10", "optim.warmup_steps=11"}),
                       "is above optim.decay_until = 10"));
}

TEST(LearningRate, AResumedRunTellsWhatBecomesOfItsSchedule) {
  const Options then = options_of({"schedule.steps=10"});
  EXPECT_EQ(describe_new_schedule(then, then, 5), "");
  const Options longer = options_of({"schedule.steps=20"});
  const std::string stretched = describe_new_schedule(longer, then, 10);
  for (const char* part :
       {"schedule.steps = 10, now it has 20",
        "step 11 has the learning rate 0.0005, after 2.44717e-05 at step 10",
        "now ends at step 20, not 10",
        "set optim.decay_until=10: steps after that then have its last rate, 2.44717e-05"})
    EXPECT_TRUE(contains(stretched, part)) << part << " in " << stretched;
  EXPECT_EQ(describe_new_schedule(longer, then, 0), "") << "nothing is done yet";
  const Options kept = options_of({"schedule.steps=20", "optim.decay_until=10"});
  EXPECT_TRUE(contains(describe_new_schedule(kept, then, 10),
                       "optim.decay_until = 10 keeps its schedule; later steps have the rate of "
                       "step 10, 2.44717e-05"));
  EXPECT_EQ(
      describe_new_schedule(options_of({"schedule.steps=20", "optim.decay=constant"}), then, 5),
      "");
}

}  // namespace
}  // namespace zea::test_learning_rate
