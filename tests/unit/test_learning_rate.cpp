// SPDX-License-Identifier: Apache-2.0
#include "zea/optim/learning_rate.hpp"

#include <gtest/gtest.h>

namespace zea::test_learning_rate {
namespace {

TEST(LearningRate, RisesLinearlyThenFallsToTheLeast) {
  OptimOptions optim;
  optim.lr = 1;
  optim.min_lr = 0.1;
  optim.warmup_steps = 4;
  for (const char* decay : {"cosine", "linear"}) {
    optim.decay = decay;
    EXPECT_DOUBLE_EQ(learning_rate(optim, 1, 104), 0.25);
    EXPECT_DOUBLE_EQ(learning_rate(optim, 4, 104), 1);
    EXPECT_NEAR(learning_rate(optim, 54, 104), 0.55, 1e-12) << "half way, both are half way down";
    EXPECT_DOUBLE_EQ(learning_rate(optim, 104, 104), 0.1);
  }
  optim.decay = "constant";
  EXPECT_DOUBLE_EQ(learning_rate(optim, 104, 104), 1);
}

TEST(LearningRate, IsStableUntilItsLastSteps) {
  OptimOptions optim;
  optim.lr = 2;
  optim.min_lr = 0.5;
  optim.warmup_steps = 10;
  optim.decay = "wsd";
  optim.decay_steps = 20;
  EXPECT_DOUBLE_EQ(learning_rate(optim, 5, 100), 1);
  for (const int64_t step : {10, 11, 50, 80}) EXPECT_EQ(learning_rate(optim, step, 100), 2);
  for (int64_t step = 81; step <= 100; ++step)
    EXPECT_DOUBLE_EQ(learning_rate(optim, step, 100),
                     0.5 + 1.5 * static_cast<double>(100 - step) / 20);
  EXPECT_EQ(learning_rate(optim, 101, 100), 0.5) << "a run that was made longer, then shorter";
}

TEST(LearningRate, FallsWithTheRootOfTheStep) {
  OptimOptions optim;
  optim.lr = 3;
  optim.min_lr = 0.1;
  optim.warmup_steps = 16;
  optim.decay = "inverse_sqrt";
  EXPECT_DOUBLE_EQ(learning_rate(optim, 8, 1000), 1.5);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 16, 1000), 3);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 64, 1000), 1.5);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 400, 1000), 0.6);
  EXPECT_EQ(learning_rate(optim, 1000000, 1000000), 0.1) << "the least";
  EXPECT_EQ(learning_rate(optim, 100, 100), learning_rate(optim, 100, 1000)) << "knows no end";
  optim.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(optim, 1, 1000), 3);
  EXPECT_DOUBLE_EQ(learning_rate(optim, 9, 1000), 1);
}

TEST(LearningRate, WithoutWarmUpStartsAtThePeak) {
  OptimOptions optim;
  optim.lr = 2;
  optim.decay = "linear";
  EXPECT_LT(learning_rate(optim, 1, 10), 2);
  EXPECT_GT(learning_rate(optim, 1, 10), 1.7);
}

}  // namespace
}  // namespace zea::test_learning_rate
