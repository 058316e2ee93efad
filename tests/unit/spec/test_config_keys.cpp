// SPDX-License-Identifier: Apache-2.0
// Keys that any config.json may have, whatever its family.
#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

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

/// Changes a config and each object in it in turn; returns the refusals.
template <class Change>
std::vector<std::string> said_of_each(const testing::TinyLlava& options, Change change) {
  std::vector<std::string> said;
  for (const char* part : {"", "/text_config", "/vision_config", "/audio_config"}) {
    nlohmann::json config = nlohmann::json::parse(testing::tiny_llava_config(options));
    const nlohmann::json::json_pointer place(part);
    if (!config.contains(place)) continue;
    change(config[place]);
    said.push_back(testing::refusal_of(config));
  }
  return said;
}

/// Keys on files, training, generation, and ways to compute the same.
TEST(ConfigKeys, WhatOthersWriteAndChangesNothingIsPassedOver) {
  const std::pair<const char*, nlohmann::json> keys[] = {
      {"unsloth_fixed", true},
      {"unsloth_version", "2025.1.1"},
      {"_attn_implementation", "sdpa"},
      {"_attn_implementation_internal", "eager"},
      {"attn_implementation", "flash_attention_2"},
      {"_flash_attn_2_enabled", true},
      {"use_flash_attn", false},
      {"gradient_checkpointing", false},
      {"gradient_checkpointing", true},
      {"_name_or_path", "org/name"},
      {"transformers_version", "4.40.0"},
      {"transformers.js_config", {{"dtype", "q4"}}},
      {"use_cache", false},
      {"torch_dtype", "bfloat16"},
      {"dtype", "bfloat16"},
      {"quantization_config", nullptr},
      {"quantization_config", nlohmann::json::object()},
      {"load_in_4bit", false},
      {"load_in_8bit", nullptr},
      {"pretraining_tp", 2},
      {"neftune_noise_alpha", 0.0},
      {"tokenizer_class", "LlamaTokenizer"},
      {"model_max_length", 4096},
      {"bos_token", "<s>"},
      {"num_labels", 2},
      {"a_key_of_tomorrow", nullptr},
  };
  for (const auto& options : {testing::TinyLlava{.audio = true},
                              {.text = "phi3"},
                              {.siglip = true},
                              {.pixtral = true, .merges = true},
                              {.siglip = true, .gemma3 = true}})
    for (const auto& [key, value] : keys)
      for (const std::string& said :
           said_of_each(options, [&](nlohmann::json& part) { part[key] = value; }))
        EXPECT_EQ(said, "accepted") << key;
  nlohmann::json gpt2 = nlohmann::json::parse(testing::tiny_gpt2_config());
  for (const auto& [key, value] : keys) gpt2[key] = value;
  EXPECT_EQ(testing::refusal_of(gpt2), "accepted");
}

TEST(ConfigKeys, WhatChangesTheModelIsRefused) {
  const std::pair<const char*, nlohmann::json> keys[] = {
      {"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}},
      {"quantization_config", {{"load_in_4bit", true}}},
      {"compression_config", {{"format", "int-quantized"}}},
      {"load_in_4bit", true},
      {"is_decoder", true},
      {"a_key_of_tomorrow", false},
  };
  for (const auto& [key, value] : keys)
    for (const std::string& said :
         said_of_each({}, [&](nlohmann::json& part) { part[key] = value; }))
      EXPECT_NE(said.find(key), std::string::npos) << said;
  const auto quantized =
      said_of_each({}, [&](nlohmann::json& part) { part[keys[0].first] = keys[0].second; });
  testing::expect_refusal(quantized.front(),
                          "config.quantization_config: the weights are quantized (\"gptq\")");
}

/// As long as both say the same.
TEST(ConfigKeys, RopeMayBeSaidTwice) {
  const nlohmann::json llama3 = {
      {"rope_type", "llama3"},   {"rope_theta", 500000.0},
      {"factor", 32.0},          {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  const auto said = [&](const nlohmann::json& scaling) {
    nlohmann::json config = nlohmann::json::parse(testing::tiny_llava_config());
    config["text_config"]["rope_theta"] = 500000.0;
    config["text_config"]["rope_parameters"] = llama3;
    config["text_config"]["rope_scaling"] = scaling;
    return testing::refusal_of(config);
  };
  EXPECT_EQ(said(llama3), "accepted");
  EXPECT_EQ(said(nullptr), "accepted");
  EXPECT_EQ(said(nlohmann::json::object()), "accepted");
  nlohmann::json older = llama3;
  older.erase("rope_theta");
  older.erase("rope_type");
  older["type"] = "llama3";
  EXPECT_EQ(said(older), "accepted");
  older["factor"] = 8.0;
  testing::expect_refusal(said(older), "config.text_config.rope_scaling = {");
  testing::expect_refusal(said(older), "the same as rope_parameters");
  testing::expect_refusal(said({{"rope_type", "linear"}, {"factor", 2.0}}), "rope_scaling = {");
}

/// A composite's own key decides, but in those whose text ties it as well.
TEST(ConfigKeys, HeadsAreTiedAsTransformersTiesThem) {
  const auto is_tied = [](bool merges, std::optional<bool> whole, bool text) {
    testing::TinyLlava options{.pixtral = merges, .merges = merges};
    nlohmann::json config = nlohmann::json::parse(testing::tiny_llava_config(options));
    config["text_config"]["tie_word_embeddings"] = text;
    config.erase("tie_word_embeddings");
    if (whole) config["tie_word_embeddings"] = *whole;
    return make_model_spec(config.dump()).decoder.tied_embeddings;
  };
  for (const bool merges : {false, true}) {
    EXPECT_TRUE(is_tied(merges, true, false));
    EXPECT_TRUE(is_tied(merges, {}, true));
    EXPECT_FALSE(is_tied(merges, {}, false));
    EXPECT_EQ(is_tied(merges, false, true), !merges);  // of LLaVA, not of Mistral 3
  }
}

TEST(ConfigKeys, ModelsInOtherFormsNameTheRemedy) {
  const auto said = [](nlohmann::json config) { return testing::refusal_of(config); };
  for (const char* type : {"llava_llama", "llava_mistral", "llava_qwen"})
    testing::expect_refusal(said({{"model_type", type}}), "convert_llava_weights_to_hf.py");
  testing::expect_refusal(said({{"model_type", "llava"}, {"mm_vision_tower", "openai/clip"}}),
                          "convert_llava_weights_to_hf.py");
  testing::expect_refusal(said({{"model_type", "internvl_chat"}}), "-hf on the Hugging Face hub");
  for (const char* type : {"clip", "clip_vision_model", "siglip2", "dinov2"})
    testing::expect_refusal(said({{"model_type", type}}), "name it in model.vision.weights");
  testing::expect_refusal(said({{"model_type", "whisper"}}), "name it in model.audio.weights");
  for (const char* type : {"gemma3n", "gemma3n_text"})
    testing::expect_refusal(said({{"model_type", type}}), "Gemma 3n (AltUp, Laurel, a MobileNet");
  testing::expect_refusal(said({{"model_type", "gemma4_unified"}}), "without encoders (12B) are");
  for (const char* type : {"gemma4_assistant", "gemma4_unified_assistant"})
    testing::expect_refusal(said({{"model_type", type}}), "take the Gemma 4 model that it assists");
  testing::expect_refusal(said({{"model_type", "llama4"}}), "allowed: deepseek_v3, gemma, ");
}

}  // namespace
}  // namespace zea::test_config_keys
