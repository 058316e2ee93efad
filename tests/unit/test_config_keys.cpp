// SPDX-License-Identifier: Apache-2.0
// Keys that any config.json may have, whatever its family.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/config_refusal.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_config_keys {
namespace {

TEST(ConfigKeys, OfEveryConfigOnlyWhatChangesNothingIsPassedOver) {
  const auto refused = [](const char* part, const char* key, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(testing::tiny_llava_config({.audio = true}));
    config[part][key] = value;
    return testing::refusal_of(config);
  };
  EXPECT_NE(refused("vision_config", "pruned_heads", {{"0", {1}}})
                .find("config.vision_config.pruned_heads = {\"0\":[1]}; allowed: {}"),
            std::string::npos);
  EXPECT_NE(refused("text_config", "is_decoder", true)
                .find("config.text_config.is_decoder = true; allowed: false"),
            std::string::npos);
  for (const char* key : {"is_encoder_decoder", "tie_encoder_decoder", "torchscript"}) {
    EXPECT_NE(refused("text_config", key, true).find("allowed: false"), std::string::npos) << key;
    EXPECT_EQ(refused("text_config", key, false), "accepted") << key;
  }
  EXPECT_NE(refused("text_config", "cross_attention_hidden_size", 64).find("allowed: null"),
            std::string::npos);
  EXPECT_EQ(refused("text_config", "cross_attention_hidden_size", nullptr), "accepted");
  EXPECT_EQ(refused("vision_config", "pruned_heads", nlohmann::json::array()), "accepted");
  EXPECT_EQ(refused("audio_config", "is_encoder_decoder", true), "accepted");   // all of Whisper
  EXPECT_EQ(refused("text_config", "chunk_size_feed_forward", 8), "accepted");  // same results
}

}  // namespace
}  // namespace zea::test_config_keys
