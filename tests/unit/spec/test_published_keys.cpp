// SPDX-License-Identifier: Apache-2.0
// Special keys of published configs: patches that do not divide the image, and keys that disable
// unsupported features. test_corpus reads whole configs.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/config_refusal.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_published_keys {
namespace {

using testing::tiny_llava_config;

template <class Change>
std::string refusal(Change change) {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config());
  change(config);
  return testing::refusal_of(config);
}

TEST(PublishedKeys, ReadsNoPixelsBehindTheLastWholePatch) {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config());
  config["vision_config"]["patch_size"] = 3;
  const ModelSpec model = make_model_spec(config.dump());
  EXPECT_EQ(model.encoders.front().patches().side(), 2);
  EXPECT_EQ(model.encoders.front().item_shape().features, 4);
}

/// Keys of published configs that say that something is not so.
TEST(PublishedKeys, RefusesWhatPublishedConfigsDeny) {
  const auto refused = [](const std::string& key, auto value, auto change) {
    EXPECT_NE(refusal(change).find(key), std::string::npos) << key;
    EXPECT_NE(refusal(change).find("; allowed: "), std::string::npos) << value;
  };
  refused("add_cross_attention", true, [](auto& c) { c["add_cross_attention"] = true; });
  refused("add_cross_attention", true,
          [](auto& c) { c["vision_config"]["add_cross_attention"] = true; });
  refused("use_mrope", true, [](auto& c) {
    c["text_config"]["model_type"] = "qwen2";
    c["text_config"]["use_mrope"] = true;
  });
}

}  // namespace
}  // namespace zea::test_published_keys
