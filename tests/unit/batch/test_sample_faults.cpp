// SPDX-License-Identifier: Apache-2.0
// Samples that a model cannot train on.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "batch/make_microbatch.hpp"
#include "core/error.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_sample_faults {
namespace {

std::string fault_of(std::vector<int32_t> tokens, std::vector<uint8_t> loss_mask) {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config());
  config["image_token_index"] = 40;  // the vocabulary has 40
  const ModelSpec model = make_model_spec(config.dump());
  Sample sample;
  sample.tokens = std::move(tokens);
  sample.loss_mask.assign(loss_mask.begin(), loss_mask.end());
  try {
    tokens_of({sample}, model);
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SampleFaults, TokensMustBeInTheVocabulary) {
  EXPECT_EQ(fault_of({1, 2, 5}, {0, 1, 1}), "accepted");
  EXPECT_NE(fault_of({1, 41, 5}, {0, 0, 1}).find("token id 41 is outside the model's vocabulary"),
            std::string::npos);
}

TEST(SampleFaults, PlaceholdersOutsideTheVocabularyAreNoTargets) {
  const std::string expected = "placeholder outside the model's vocabulary";
  EXPECT_NE(fault_of({1, 40, 5}, {0, 1, 1}).find(expected), std::string::npos);
  EXPECT_EQ(fault_of({1, 40, 5}, {0, 0, 1}).find(expected), std::string::npos);
}

}  // namespace
}  // namespace zea::testing::test_sample_faults
