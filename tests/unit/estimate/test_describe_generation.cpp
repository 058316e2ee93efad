// SPDX-License-Identifier: Apache-2.0
// The plan's text on generation: the memory of the KV cache, and the ends of texts.
#include "estimate/describe.hpp"

#include <gtest/gtest.h>

#include "support/files.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_describe_generation {
namespace {

std::string text_of(const Options& options, int ranks) {
  return describe_generation(make_plan(options, testing::tiny_llava_config(), ranks));
}

Options generating() {
  Options options;
  options.run.mode = RunMode::Generate;
  options.eval.generate_tokens = 8;
  return options;
}

TEST(DescribeGeneration, SaysNothingWhereNothingIsGenerated) {
  EXPECT_EQ(text_of({}, 2), "");
  Options options = generating();
  options.run.mode = RunMode::Train;
  EXPECT_EQ(text_of(options, 2), "");
  options.eval.every = 5;
  EXPECT_NE(text_of(options, 2), "");
}

TEST(DescribeGeneration, SaysWhatIsKeptAndWhereTextsEnd) {
  const Options options = generating();
  for (const char* part : {"keys that generation keeps: ", "what generation sends is not predicted",
                           "generated texts end at token 2 (the model's eos_token_id)\n"})
    EXPECT_TRUE(contains(text_of(options, 2), part)) << text_of(options, 2);
  EXPECT_FALSE(contains(text_of(options, 1), "sends"));
}

TEST(DescribeGeneration, KeepsNoMoreThanTheSamplesThatAreEvaluated) {
  Options options;
  options.eval.every = 1;
  options.eval.generate_tokens = 8;
  options.schedule.global_batch = 64;
  for (const auto& [samples, kept] : {std::pair{0, 32}, {100, 32}, {9, 5}, {1, 1}}) {
    options.eval.samples = samples;
    const Plan plan = make_plan(options, testing::tiny_llava_config(), 2);
    EXPECT_EQ(kv_cache_bytes(plan, 0),
              kept * kv_bytes_per_token(plan, 0) * (options.data.row_tokens + 8));
    EXPECT_TRUE(contains(describe_generation(plan), " for " + std::to_string(kept) + " samples"));
  }
}

TEST(DescribeGeneration, TheDecksOwnStopsGoBefore) {
  Options options = generating();
  options.eval.stop_tokens = {5, 6};
  options.eval.stop_texts = {"\n"};
  const char* said = "generated texts end at \"\\n\", token 5 6 (eval.stop_tokens)\n";
  EXPECT_TRUE(contains(text_of(options, 1), said)) << text_of(options, 1);
}

}  // namespace
}  // namespace zea::test_describe_generation
