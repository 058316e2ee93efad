// SPDX-License-Identifier: Apache-2.0
// What a plan says of generation: the memory of kept keys, and where texts end.
#include "zea/plan/estimate/kept_keys.hpp"

#include <gtest/gtest.h>

#include "support/files.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_describe_generation {
namespace {

std::string text_of(const Options& options, int ranks) {
  return describe_generation(make_plan(options, testing::tiny_llava_config(), ranks));
}

TEST(DescribeGeneration, SaysNothingWhereNothingIsGenerated) {
  EXPECT_EQ(text_of({}, 2), "");
}

TEST(DescribeGeneration, SaysWhatIsKeptAndWhereTextsEnd) {
  Options options;
  options.eval.generate_tokens = 8;
  for (const char* part : {"keys that generation keeps: ", "what generation sends is not predicted",
                           "generated texts end at token 2 (the model's eos_token_id)\n"})
    EXPECT_TRUE(contains(text_of(options, 2), part)) << text_of(options, 2);
  EXPECT_FALSE(contains(text_of(options, 1), "sends"));
}

TEST(DescribeGeneration, TheDecksOwnStopsGoBefore) {
  Options options;
  options.eval.generate_tokens = 8;
  options.eval.stop_tokens = {5, 6};
  options.eval.stop_texts = {"\n"};
  const char* said = "generated texts end at \"\\n\", token 5 6 (eval.stop_tokens)\n";
  EXPECT_TRUE(contains(text_of(options, 1), said)) << text_of(options, 1);
}

}  // namespace
}  // namespace zea::test_describe_generation
