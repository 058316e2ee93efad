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

TEST(LearningRate, WithoutWarmUpStartsAtThePeak) {
  OptimOptions optim;
  optim.lr = 2;
  optim.decay = "linear";
  EXPECT_LT(learning_rate(optim, 1, 10), 2);
  EXPECT_GT(learning_rate(optim, 1, 10), 1.7);
}

}  // namespace
}  // namespace zea::test_learning_rate
