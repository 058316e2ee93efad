// SPDX-License-Identifier: Apache-2.0
// The plan's text on gradients that ranks sum in bf16.
#include "estimate/describe.hpp"

#include <gtest/gtest.h>

#include "support/tiny_llava.hpp"

namespace zea::test_describe_reductions {
namespace {

std::string text_of(DTypeOption reduce, int ranks, bool trains = true) {
  Options options;
  options.run.mode = trains ? "train" : "evaluate";
  options.data.row_tokens = 16;
  options.precision.preset = PrecisionPreset::Bf16;
  options.precisions["llm"].reduce_dtype = reduce;
  const Plan plan = make_plan(options, testing::tiny_llava_config(), ranks);
  const StepSamples samples = synthetic_samples(plan);
  return describe_reductions(plan, samples, facts_of(plan, samples));
}

TEST(DescribeReductions, NamesTheModuleWithBytesAndRounding) {
  const std::string text = text_of(DTypeOption::Bf16, 2);
  EXPECT_TRUE(text.starts_with("gradients summed between ranks\n  llm: in bf16")) << text;
  EXPECT_NE(text.find(" less than in fp32"), std::string::npos) << text;
  EXPECT_EQ(text.find("vision"), std::string::npos) << text;
}

TEST(DescribeReductions, SaysNothingWhereSumsAreExactOrNoneAreSent) {
  EXPECT_EQ(text_of(DTypeOption::Preset, 2), "");
  EXPECT_EQ(text_of(DTypeOption::Fp32, 2), "");
  EXPECT_EQ(text_of(DTypeOption::Bf16, 1), "");
  EXPECT_EQ(text_of(DTypeOption::Bf16, 2, false), "");
}

}  // namespace
}  // namespace zea::test_describe_reductions
