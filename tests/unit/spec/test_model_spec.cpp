// SPDX-License-Identifier: Apache-2.0
#include "spec/model_spec.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "support/config_refusal.hpp"
#include "support/files.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_model_spec {
namespace {

using testing::tiny_llava_config;

std::vector<std::string> unit_names(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const UnitSpec& unit : model.units) names.push_back(unit.name);
  return names;
}

TEST(ModelSpec, WalksOnlyUnitsThatSomethingReads) {
  const ModelSpec model = make_model_spec(tiny_llava_config({.layers = 1, .vision_layers = 3}));
  EXPECT_EQ(unit_names(model),
            (std::vector<std::string>{"vision.embed", "vision.layers.0", "vision.layers.1",
                                      "vision.projector", "llm.embed", "llm.merge", "llm.layers.0",
                                      "llm.head"}));
  const int skipped = model.param_index("vision_tower.encoder.layers.2.mlp.fc1.weight");
  ASSERT_GE(skipped, 0);
  EXPECT_FALSE(model.params[skipped].trainable);
  EXPECT_FALSE(model.params[skipped].used);
  EXPECT_FALSE(model.params[model.param_index("vision_tower.post_layernorm.weight")].used);
}

TEST(ModelSpec, TextsEndWhereEitherConfigSaysSo) {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config());
  EXPECT_EQ(make_model_spec(config.dump()).decoder.end_tokens, std::vector<int64_t>{2});
  config[kGenerationConfig] = {{"eos_token_id", {7, 2, 9}}};
  EXPECT_EQ(make_model_spec(config.dump()).decoder.end_tokens, (std::vector<int64_t>{2, 7, 9}));
  config[kGenerationConfig] = {{"eos_token_id", 7}};
  EXPECT_EQ(make_model_spec(config.dump()).decoder.end_tokens, (std::vector<int64_t>{2, 7}));
  config[kGenerationConfig] = {{"eos_token_id", "two"}};
  EXPECT_TRUE(contains(error_of([&] { make_model_spec(config.dump()); }), "eos_token_id"));
}

TEST(ModelSpec, InputsComeBeforeTheirReaders) {
  const ModelSpec model = make_model_spec(tiny_llava_config({.feature_layer = "[0, -1, 1]"}));
  for (size_t u = 0; u < model.units.size(); ++u)
    for (const UnitInput& input : model.units[u].inputs) EXPECT_LT(input.unit, static_cast<int>(u));
  const auto projector =
      std::find_if(model.units.begin(), model.units.end(),
                   [](const UnitSpec& unit) { return unit.kind == UnitKind::Projector; });
  EXPECT_EQ(projector->inputs.size(), 3);
  EXPECT_EQ(model.params[projector->params[0]].shape, (Shape{24, 3 * 16}));
}

TEST(ModelSpec, FreezesModulesAndProjectorSeparately) {
  const ModelSpec model = make_model_spec(
      tiny_llava_config(), {.encoders = {{"vision", {.encoder = false}}}, .llm = false});
  for (const ParamSpec& param : model.params)
    EXPECT_EQ(param.trainable, param.name.starts_with("multi_modal_projector.")) << param.name;
}

TEST(ModelSpec, AudioComesAfterImagesAndBothAreMerged) {
  const ModelSpec model = make_model_spec(
      tiny_llava_config({.layers = 1, .vision_layers = 2, .audio = true, .audio_layers = 2}));
  EXPECT_EQ(unit_names(model),
            (std::vector<std::string>{"vision.embed", "vision.layers.0", "vision.projector",
                                      "audio.embed", "audio.layers.0", "audio.layers.1",
                                      "audio.projector", "llm.embed", "llm.merge", "llm.layers.0",
                                      "llm.head"}));
  const std::vector<UnitInput>& merged = model.units[8].inputs;
  ASSERT_EQ(merged.size(), 3u);
  EXPECT_EQ(merged[1].unit, 2);
  EXPECT_EQ(merged[2].unit, 6);
  EXPECT_TRUE(merged[1].optional && merged[2].optional);
  EXPECT_EQ(model.modules(), (std::vector<std::string>{"vision", "audio", "llm"}));
  EXPECT_TRUE(model.is_placeholder(3) && model.is_placeholder(4));
  EXPECT_FALSE(model.is_placeholder(5));
  EXPECT_EQ(model.encoders[1].item_shape().tokens, 6);
}

TEST(ModelSpec, AModelMayHearAndNotSee) {
  const ModelSpec model = make_model_spec(tiny_llava_config({.vision = false, .audio = true}));
  EXPECT_EQ(model.modules(), (std::vector<std::string>{"audio", "llm"}));
  EXPECT_EQ(model.param_index("multi_modal_projector.linear_1.weight"), -1);
  EXPECT_FALSE(model.is_placeholder(3));
}

TEST(ModelSpec, FreezesTheAudioEncoderAndItsProjectorSeparately) {
  const auto only = [](bool encoder, bool projector) {
    return make_model_spec(
        tiny_llava_config({.audio = true}),
        {.encoders = {{"vision", {false, false}}, {"audio", {encoder, projector}}}, .llm = false});
  };
  const ModelSpec encoder = only(true, false), projector = only(false, true);
  for (size_t p = 0; p < encoder.params.size(); ++p) {
    const std::string& name = encoder.params[p].name;
    EXPECT_EQ(projector.params[p].trainable, name.starts_with("audio_projector.")) << name;
    EXPECT_EQ(encoder.params[p].trainable,
              name.starts_with("audio_tower.") && !name.ends_with("embed_positions.weight"))
        << name;
  }
}

TEST(ModelSpec, ATiedHeadReadsTheEmbedding) {
  const ModelSpec model = make_model_spec(tiny_llava_config({.tied = true}));
  EXPECT_EQ(model.param_index("language_model.lm_head.weight"), -1);
  EXPECT_EQ(model.units.back().params.back(),
            model.param_index("language_model.model.embed_tokens.weight"));
}

/// The refusal of a config in which `change` was made.
template <class Change>
std::string refusal(Change change) {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.audio = true}));
  change(config);
  return testing::refusal_of(config);
}

TEST(ModelSpec, RefusesWhatIsNotBuiltByKey) {
  EXPECT_NE(refusal([](auto& c) { c["model_type"] = "bert"; })
                .find("config.model_type = \"bert\"; allowed: deepseek_v3, gemma, gemma2, gemma3, "
                      "gemma3_text, gemma4, gemma4_text, glm46v, glm4_moe, glm4v, glm4v_moe, gpt2, "
                      "gpt_oss, idefics3, internvl, kimi_k25, llama, llava"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) {
              c["text_config"]["model_type"] = "gemma3n_text";
            }).find("config.text_config.model_type = gemma3n_text; allowed: "),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) {
              c["text_config"]["model_type"] = "gemma2";
            }).find("final_logit_softcapping = 30.000000; allowed: null"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) {
              c["text_config"]["hidden_act"] = "gelu";
            }).find("config.text_config.hidden_act = gelu"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) {
              c["text_config"]["rope_scaling"] = {{"rope_type", "xpos"}};
            }).find("xpos"),
            std::string::npos);
  EXPECT_NE(
      refusal([](auto& c) { c["vision_feature_layer"] = -9; }).find("vision_feature_layer = -9"),
      std::string::npos);
  EXPECT_NE(refusal([](auto& c) {
              c["text_config"]["num_key_value_heads"] = 3;
            }).find("a divisor of num_attention_heads = 4"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) { c.erase("text_config"); }).find("config.text_config = nothing"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& c) {
              c["text_config"]["attention_dropout"] = 0.1;
            }).find("attention_dropout = 0.1"),
            std::string::npos);
  EXPECT_NE(
      refusal([](auto& c) { c["vision_config"]["patch_size"] = 9; }).find("at most image_size = 8"),
      std::string::npos);
}

nlohmann::json heard_config(const std::string& family) {
  return {{"model_type", family},
          {"audio_token_id", 9},
          {"audio_config",
           {{"model_type", family + (family == "voxtral" ? "_encoder" : "_audio_encoder")}}},
          {"text_config",
           {{"model_type", "llama"},
            {"hidden_size", 64},
            {"intermediate_size", 96},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 4},
            {"num_key_value_heads", 2},
            {"head_dim", 16},
            {"max_position_embeddings", 512},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 1e4},
            {"vocab_size", 100}}}};
}

TEST(ModelSpec, Qwen2AudioAveragesTwoPositionsOfAClip) {
  nlohmann::json config = heard_config("qwen2");
  config["model_type"] = "qwen2_audio";
  const ModelSpec model = make_model_spec(config.dump());
  const EncoderSpec& audio = model.encoders.at(0);
  EXPECT_EQ(std::pair(audio.mels().mel_bins, audio.placeholder), std::pair(128L, 9L));
  ItemShape clip{.tokens = 1500, .features = 750, .merge = 2, .mel_columns = 3000};
  EXPECT_EQ(audio.item_shape(), clip);
  clip.tokens = 4, clip.features = clip.padding_tokens = 1;
  EXPECT_EQ(audio.clip_shape(5), clip);
  const int linear = model.param_index("multi_modal_projector.linear.weight");
  EXPECT_EQ(model.params.at(linear).shape, (Shape{64, 1280}));
  EXPECT_GE(model.param_index("language_model.model.layers.0.self_attn.q_proj.weight"), 0);
  EXPECT_GE(model.param_index("language_model.lm_head.weight"), 0);
}

TEST(ModelSpec, VoxtralPutsFourPositionsSideBySide) {
  nlohmann::json config = heard_config("voxtral");
  const ModelSpec model = make_model_spec(config.dump());
  EXPECT_EQ(model.encoders.at(0).item_shape(),
            (ItemShape{.tokens = 1500, .features = 375, .merge = 4, .mel_columns = 3000}));
  const int linear = model.param_index("multi_modal_projector.linear_1.weight");
  EXPECT_EQ(model.params.at(linear).shape, (Shape{64, 5120}));
  EXPECT_EQ(model.param_index("multi_modal_projector.linear_1.bias"), -1);
  const auto refused = [](const nlohmann::json& changed) {
    try {
      make_model_spec(changed.dump());
    } catch (const WeightsError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  config["audio_config"]["max_source_positions"] = 1502;
  EXPECT_NE(refused(config).find("a multiple of intermediate_size / hidden_size = 4"),
            std::string::npos);
  config["text_config"].erase("head_dim");
  EXPECT_NE(refused(config).find("config.text_config.head_dim = nothing"), std::string::npos);
}

nlohmann::json phi3_config() {
  return {{"model_type", "phi3"},          {"hidden_size", 32},        {"intermediate_size", 48},
          {"num_attention_heads", 4},      {"num_key_value_heads", 2}, {"num_hidden_layers", 1},
          {"max_position_embeddings", 64}, {"vocab_size", 100}};
}

TEST(ModelSpec, Phi3HasPartsOfTensors) {
  const ModelSpec model = make_model_spec(phi3_config().dump());
  std::vector<int64_t> begins;
  for (const ParamSpec& param : model.params) {
    if (!param.name.ends_with("qkv_proj.weight")) continue;
    EXPECT_EQ(param.tensor_shape(), (Shape{64, 32}));
    EXPECT_EQ(param.begins_tensor(), begins.empty());
    begins.push_back(param.part.begin);
  }
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 32, 48}));
  EXPECT_EQ(model.num_parameters(), 2 * 100 * 32 + 3 * 32 + 64 * 32 + 32 * 32 + 3 * 48 * 32);
}

TEST(ModelSpec, RopeOfATypeHasItsKeys) {
  const auto refused = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = phi3_config();
    config["rope_parameters"] = {
        {"rope_type", "longrope"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {1, 2, 3, 4}}};
    (config["rope_parameters"].contains(key) ? config["rope_parameters"] : config)[key] = value;
    try {
      make_model_spec(config.dump());
    } catch (const WeightsError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused("sliding_window", 63), "accepted");
  EXPECT_NE(refused("sliding_window", 0).find("sliding_window = 0"), std::string::npos);
  EXPECT_NE(refused("long_factor", {1, 2, 3}).find("a list of 4 numbers above 0"),
            std::string::npos);
  EXPECT_NE(refused("long_factor", {1, 2, 0, 3}).find("a list of 4 numbers above 0"),
            std::string::npos);
  EXPECT_NE(refused("short_factor", nullptr).find("short_factor = nothing"), std::string::npos);
  EXPECT_NE(refused("partial_rotary_factor", 1.5), "accepted");
  nlohmann::json llama = nlohmann::json::parse(tiny_llava_config());
  llama["text_config"]["partial_rotary_factor"] = 0.5;
  EXPECT_THROW(make_model_spec(llama.dump()), WeightsError);
}

/// The window of each block.
std::vector<int64_t> windows_of(const nlohmann::json& config) {
  const ModelSpec model = make_model_spec(config.dump());
  std::vector<int64_t> windows;
  for (const UnitSpec& unit : model.units)
    if (unit.kind == UnitKind::Block) windows.push_back(model.attention(unit).window);
  return windows;
}

TEST(ModelSpec, MistralsBlocksSeeAWindow) {
  const nlohmann::json config{{"model_type", "mistral"}, {"num_hidden_layers", 2}};
  const auto with = [&](const nlohmann::json& window) {
    nlohmann::json other = config;
    other["sliding_window"] = window;
    return windows_of(other);
  };
  EXPECT_EQ(windows_of(config), (std::vector<int64_t>{4096, 4096}));
  EXPECT_EQ(with(7), (std::vector<int64_t>{7, 7}));
  EXPECT_EQ(with(nullptr), (std::vector<int64_t>{0, 0}));
  EXPECT_THROW(with(0), WeightsError);
  EXPECT_EQ(make_model_spec(config.dump()).decoder.block.attention().heads.key_value, 8);
}

TEST(ModelSpec, Qwen2sUpperBlocksSeeAWindow) {
  const nlohmann::json config{{"model_type", "qwen2"},
                              {"num_hidden_layers", 3},
                              {"max_window_layers", 1},
                              {"sliding_window", 9},
                              {"use_sliding_window", true}};
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json other = config;
    other[key] = value;
    return windows_of(other);
  };
  EXPECT_EQ(windows_of(config), (std::vector<int64_t>{0, 9, 9}));
  EXPECT_EQ(with("max_window_layers", 0), (std::vector<int64_t>{9, 9, 9}));
  EXPECT_EQ(with("max_window_layers", 3), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(with("use_sliding_window", false), (std::vector<int64_t>{0, 0, 0}));
  const char* const full = "full_attention";
  const char* const sliding = "sliding_attention";
  EXPECT_EQ(with("layer_types", {sliding, full, sliding}), (std::vector<int64_t>{9, 0, 9}));
  EXPECT_THROW(with("layer_types", {sliding, full}), WeightsError);
  EXPECT_THROW(with("layer_types", {"chunked_attention", full, full}), WeightsError);
  EXPECT_THROW(with("layer_types", "full_attention"), WeightsError);
}

TEST(ModelSpec, RefusesSlidingLayersWithoutAWindow) {
  const nlohmann::json config{{"model_type", "qwen2"},
                              {"num_hidden_layers", 1},
                              {"layer_types", nlohmann::json::array({"sliding_attention"})}};
  EXPECT_THROW(windows_of(config), WeightsError);
}

/// The refusal of a GPT-2 config with only `key` in addition to the family.
std::string gpt2_refusal(const std::string& key, const nlohmann::json& value) {
  try {
    make_model_spec(nlohmann::json{{"model_type", "gpt2"}, {key, value}}.dump());
  } catch (const WeightsError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ModelSpec, Gpt2OfDefaultsIsTheSmallOne) {
  const ModelSpec model = make_model_spec(R"({"model_type": "gpt2"})");
  EXPECT_EQ(model.num_parameters(), 124439808);
  EXPECT_EQ(model.param_index("lm_head.weight"), -1);
  const auto shape = [&](const std::string& name) {
    return model.params.at(model.param_index("transformer." + name)).shape;
  };
  EXPECT_EQ(shape("wpe.weight"), (Shape{1024, 768}));
  EXPECT_EQ(shape("h.11.attn.c_attn.weight"), (Shape{768, 2304}));
  EXPECT_EQ(shape("h.0.mlp.c_proj.weight"), (Shape{3072, 768}));
  const ParamSpec& residual = model.params[model.param_index("transformer.h.0.mlp.c_proj.weight")];
  EXPECT_DOUBLE_EQ(residual.std, 0.02 / std::sqrt(24.0));
  EXPECT_EQ(model.params[model.param_index("transformer.h.0.mlp.c_fc.weight")].std, 0.02);
}

TEST(ModelSpec, RefusesVariantsOfGpt2) {
  for (const char* key :
       {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"}) {
    EXPECT_EQ(gpt2_refusal(key, false), "accepted");
    EXPECT_NE(gpt2_refusal(key, true).find("config." + std::string(key) + " = true"),
              std::string::npos);
  }
  EXPECT_NE(gpt2_refusal("scale_attn_weights", false).find("scale_attn_weights = false"),
            std::string::npos);
  EXPECT_NE(gpt2_refusal("n_head", 7).find("a divisor of n_embd = 768"), std::string::npos);
}

const TpSharding& cut_in(const ModelSpec& model, const std::string& name) {
  return model.params.at(model.param_index(name)).tp_sharding;
}

TEST(ModelSpec, CutsLinearLayersByHeadsAndRowsAndLeavesTheRestWhole) {
  const ModelSpec model = make_model_spec(tiny_llava_config({.biases = true}));
  const std::string layer = "language_model.model.layers.0.",
                    vision = "vision_tower.encoder.layers.0.", root = "multi_modal_projector.";
  struct Expected {
    std::string name;
    int dim;
    int64_t blocks;
    bool replicates_kv = false, pads = false;
  };
  const Expected expected[] = {
      {layer + "self_attn.q_proj.weight", 0, 4},
      {layer + "self_attn.q_proj.bias", 0, 4},
      {layer + "self_attn.k_proj.weight", 0, 2, true},
      {layer + "self_attn.v_proj.bias", 0, 2, true},
      {layer + "self_attn.o_proj.weight", 1, 4},
      {layer + "self_attn.o_proj.bias", -1, 0},
      {layer + "mlp.gate_proj.weight", 0, 40},
      {layer + "mlp.up_proj.bias", 0, 40},
      {layer + "mlp.down_proj.weight", 1, 40},
      {layer + "mlp.down_proj.bias", -1, 0},
      {layer + "input_layernorm.weight", -1, 0},
      {"language_model.model.embed_tokens.weight", 0, 0, false, true},
      {"language_model.lm_head.weight", 0, 0, false, true},
      {vision + "self_attn.k_proj.weight", 0, 2},
      {vision + "self_attn.k_proj.bias", 0, 2},
      {vision + "self_attn.out_proj.weight", 1, 2},
      {vision + "self_attn.out_proj.bias", -1, 0},
      {vision + "mlp.fc1.bias", 0, 24},
      {vision + "mlp.fc2.weight", 1, 24},
      {"vision_tower.embeddings.patch_embedding.weight", -1, 0},
      {root + "linear_1.weight", 0, 24},
      {root + "linear_1.bias", 0, 24},
      {root + "linear_2.weight", 1, 24},
      {root + "linear_2.bias", -1, 0},
  };
  for (const Expected& wanted : expected) {
    const TpSharding& cut = cut_in(model, wanted.name);
    EXPECT_EQ(cut.dim, wanted.dim) << wanted.name;
    EXPECT_EQ(cut.blocks, wanted.blocks) << wanted.name;
    EXPECT_EQ(cut.replicates_kv, wanted.replicates_kv) << wanted.name;
    EXPECT_EQ(cut.pads, wanted.pads) << wanted.name;
  }
}

/// Pieces of fused parameters lie adjacent, so they are cut along the dim in which they are fused.
TEST(ModelSpec, FusedParametersAreCutByRows) {
  for (const ModelSpec& model : {make_model_spec(tiny_llava_config({.biases = true})),
                                 make_model_spec(R"({"model_type": "gpt2"})")})
    for (size_t p = 0; p + 1 < model.params.size(); ++p) {
      if (!model.params[p].fused_with_next) continue;
      EXPECT_EQ(model.params[p].tp_sharding.dim, 0) << model.params[p].name;
      EXPECT_EQ(model.params[p + 1].tp_sharding.dim, 0) << model.params[p + 1].name;
    }
}

TEST(ModelSpec, RefusesWhatIsWrongWithTheAudioEncoder) {
  const auto expect = [](const std::string& sentence, void (*change)(nlohmann::json&)) {
    EXPECT_NE(refusal(change).find(sentence), std::string::npos) << refusal(change);
  };
  expect("config.audio_config.model_type = wav2vec2; allowed: whisper",
         [](auto& c) { c["audio_config"]["model_type"] = "wav2vec2"; });
  expect("config.audio_config.encoder_layerdrop = 0.1",
         [](auto& c) { c["audio_config"]["encoder_layerdrop"] = 0.1; });
  expect("config.audio_config.encoder_attention_heads = 5; allowed: a divisor of d_model = 16",
         [](auto& c) { c["audio_config"]["encoder_attention_heads"] = 5; });
  expect("config.audio_config.d_model = 9; allowed: an even number of 4 or more", [](auto& c) {
    c["audio_config"]["d_model"] = 9;
    c["audio_config"]["encoder_attention_heads"] = 3;
  });
  expect("config.audio_token_index = 3; allowed: another id than that of vision",
         [](auto& c) { c["audio_token_index"] = 3; });
  expect("config.audio_token_index = -1; allowed: 0 or more",
         [](auto& c) { c.erase("audio_token_index"); });
}

TEST(ModelSpec, RefusesTextThatIsNotJson) {
  EXPECT_THROW(make_model_spec("hello"), WeightsError);
}

TEST(ModelSpec, RefusesTextOfStrangersThatWouldTakeAllMemory) {
  const auto expect = [](const std::string& sentence, const auto& change) {
    const std::string said = refusal(change);
    EXPECT_NE(said.find(sentence), std::string::npos) << said;
  };

  expect("1099511627776; allowed: 1 to 1073741824",
         [](auto& c) { c["text_config"]["num_hidden_layers"] = int64_t{1} << 40; });
  expect("model config: 1073741824 layers of llm; allowed: 1 to 1024",
         [](auto& c) { c["text_config"]["num_hidden_layers"] = 1 << 30; });
  expect(".weight has more than 2^40 elements", [](auto& c) {
    c["text_config"]["vocab_size"] = c["text_config"]["hidden_size"] = 1 << 30;
  });
  const int depth = 1 << 20;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  EXPECT_THROW(make_model_spec(deep), WeightsError);
  EXPECT_THROW(make_model_spec("{\"model_type\": \"llama\", \"strange\": " + deep + "}"),
               WeightsError);
}

}  // namespace
}  // namespace zea::test_model_spec
