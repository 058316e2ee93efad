// SPDX-License-Identifier: Apache-2.0
// Gemma 3 with images as a spec: names and shapes, shapes of images, and refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "schedule/plan.hpp"
#include "support/config_refusal.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_gemma3 {
namespace {

std::string tiny_config() {
  return testing::tiny_llava_config(
      {.tied = true, .image_size = 24, .siglip = true, .gemma3 = true});
}

/// Keys that published configs leave out have transformers' default values.
const char* const kPublished4b = R"({
  "boi_token_index": 255999, "eoi_token_index": 256000, "eos_token_id": [1, 106],
  "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
  "model_type": "gemma3",
  "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024},
  "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
    "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
    "patch_size": 14, "vision_use_head": false}})";

const ParamSpec& param(const ModelSpec& model, const std::string& name) {
  return model.params.at(static_cast<size_t>(model.param_index(name)));
}

TEST(Gemma3, HasTheNamesAndShapesOfItsFiles) {
  const ModelSpec model = make_model_spec(tiny_config(), {.encoders = {{"vision", {false, true}}}});
  const ParamSpec& matrix = param(model, "multi_modal_projector.mm_input_projection_weight");
  EXPECT_EQ(matrix.shape, (Shape{16, 24}));
  EXPECT_TRUE(matrix.trainable);
  EXPECT_EQ(param(model, "multi_modal_projector.mm_soft_emb_norm.weight").init, Init::Zeros);
  EXPECT_EQ(param(model, "vision_tower.post_layernorm.bias").shape, Shape{16});
  EXPECT_FALSE(param(model, "vision_tower.post_layernorm.weight").trainable);
  EXPECT_EQ(param(model, "language_model.model.layers.1.self_attn.q_norm.weight").shape, Shape{6});
  EXPECT_EQ(model.param_index("language_model.lm_head.weight"), -1);
}

TEST(Gemma3, TheHeadOfItsTowerIsCarried) {
  nlohmann::json config = nlohmann::json::parse(tiny_config());
  config["vision_config"].erase("vision_use_head");
  const ModelSpec model = make_model_spec(config.dump());
  EXPECT_FALSE(param(model, "vision_tower.head.probe").used);
  EXPECT_TRUE(param(model, "vision_tower.post_layernorm.weight").used);
}

TEST(Gemma3, IsWhatItsAuthorsPublished) {
  const ModelSpec model = make_model_spec(kPublished4b);
  EXPECT_EQ(model.num_parameters(), 4300079472);
  EXPECT_EQ(model.encoders[0].item_shape().tokens, 4096);
  EXPECT_EQ(model.encoders[0].item_shape().features, 256);
  EXPECT_FALSE(model.encoders[0].patches().video);
  EXPECT_EQ(model.decoder.end_tokens, (std::vector<int64_t>{1, 106}));
  int64_t narrow = 0;
  for (const UnitSpec& unit : model.units)
    narrow += unit.kind == UnitKind::Block && model.attention(unit).window == 1024;
  EXPECT_EQ(narrow, 29);
}

TEST(Gemma3, ImagesSeeAllOfThemselvesUnlessTheDeckSaysElse) {
  const auto see = [](const char* asked) {
    Options deck;
    deck.llm.image_attention = asked;
    return make_plan(deck, tiny_config(), 1).bidirectional_images;
  };
  EXPECT_EQ(see("auto"), BidirectionalLayers::All);
  EXPECT_EQ(see("bidirectional"), BidirectionalLayers::All);
  EXPECT_EQ(see("causal"), BidirectionalLayers::None);
  EXPECT_EQ(make_plan({}, testing::tiny_llava_config(), 1).bidirectional_images,
            BidirectionalLayers::None);
}

/// The refusal of a config in which `change` was made.
template <class Change>
std::string refusal(Change change) {
  nlohmann::json config = nlohmann::json::parse(tiny_config());
  change(config);
  return testing::refusal_of(config);
}

TEST(Gemma2, WindowsHaveALength) {
  nlohmann::json config{{"model_type", "gemma2"}, {"num_hidden_layers", 2}};
  config["sliding_window"] = nullptr;
  testing::expect_refusal(testing::refusal_of(config), "sliding_window = null");
  const char* const full = "full_attention";
  config["layer_types"] = {full, full};
  EXPECT_EQ(testing::refusal_of(config), "accepted");
}

TEST(Gemma3, RefusesWhatIsNotBuiltByKey) {
  const std::string allowed = "the square of a divisor of image_size / patch_size = 6";
  testing::expect_refusal(refusal([](auto& c) { c["mm_tokens_per_image"] = 8; }),
                          "mm_tokens_per_image = 8; allowed: " + allowed);
  testing::expect_refusal(refusal([](auto& c) { c["mm_tokens_per_image"] = 16; }), allowed);
  testing::expect_refusal(
      refusal([](auto& c) { c["vision_config"]["model_type"] = "clip_vision_model"; }),
      "vision_config.model_type = clip_vision_model");
  testing::expect_refusal(refusal([](auto& c) { c["text_config"]["model_type"] = "gemma2"; }),
                          "text_config.model_type = gemma2");
  testing::expect_refusal(
      refusal([](auto& c) { c["text_config"]["final_logit_softcapping"] = 30.0; }),
      "final_logit_softcapping = 30.000000; allowed: null");
  testing::expect_refusal(
      refusal([](auto& c) { c["text_config"]["attn_logit_softcapping"] = 50.0; }),
      "attn_logit_softcapping = 50.0; allowed: null: transformers caps scores of Gemma 2 alone");
  testing::expect_refusal(refusal([](auto& c) { c["text_config"]["sliding_window"] = nullptr; }),
                          "sliding_window = null; allowed: 1 or more, or layer_types of full");
  testing::expect_refusal(
      refusal([](auto& c) { c["text_config"]["use_bidirectional_attention"] = true; }),
      "use_bidirectional_attention = true");
  testing::expect_refusal(refusal([](auto& c) { c["projector_hidden_act"] = "gelu"; }),
                          "config.projector_hidden_act");
}

}  // namespace
}  // namespace zea::test_gemma3
