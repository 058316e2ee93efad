// SPDX-License-Identifier: Apache-2.0
// Qwen-Omni: its parts, the shapes of its clips and videos, and what is refused.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "spec/model_spec.hpp"
#include "support/config_refusal.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing::test_qwen_omni {
namespace {

ModelSpec model_with(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen2_5_omni_config());
  config.merge_patch(changes);
  return make_model_spec(config.dump());
}

std::string refusal(const nlohmann::json& changes) {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen2_5_omni_config());
  config.merge_patch(changes);
  return refusal_of(config);
}

TEST(QwenOmni, HasTwoEncodersBesideItsText) {
  const ModelSpec model = model_with();
  EXPECT_EQ(model.modules(), (std::vector<std::string>{"vision", "audio", "llm"}));
  EXPECT_FALSE(model.decoder.tied_embeddings);
  EXPECT_EQ(model.encoders[0].video_placeholder, 4);
  EXPECT_EQ(model.encoders[1].placeholder, 6);
  for (const char* name : {"visual.blocks.0.attn.q.weight", "audio_tower.ln_post.weight",
                           "audio_tower.proj.bias", "model.norm.weight", "lm_head.weight"})
    EXPECT_GE(model.param_index(name), 0) << name;
  EXPECT_LT(model.param_index("audio_tower.embed_positions.weight"), 0);
  const int marks = model.param_index("audio_tower.audio_bos_eos_token.weight");
  ASSERT_GE(marks, 0);
  EXPECT_FALSE(model.params[static_cast<size_t>(marks)].used);
}

TEST(QwenOmni, IsTheThinkerOfAWholeDirectory) {
  nlohmann::json whole{{"model_type", "qwen2_5_omni"}, {"enable_audio_output", true}};
  whole["thinker_config"] = nlohmann::json::parse(tiny_qwen2_5_omni_config());
  whole["feature_extractor"] = whole["thinker_config"]["feature_extractor"];
  whole["thinker_config"].erase("feature_extractor");
  EXPECT_TRUE(make_model_spec(whole.dump()).notes.empty());
  whole["talker_config"] = {{"model_type", "qwen2_5_omni_talker"}};
  const ModelSpec model = make_model_spec(whole.dump());
  EXPECT_GE(model.param_index("thinker.model.layers.0.self_attn.q_proj.bias"), 0);
  EXPECT_EQ(model.num_parameters(), model_with().num_parameters());
  ASSERT_EQ(model.notes.size(), 1U);
  EXPECT_NE(model.notes[0].find("talker"), std::string::npos);
}

/// Clips have their own length, in chunks of 5 positions, the last of which may be shorter.
TEST(QwenOmni, CutsClipsIntoChunks) {
  const EncoderSpec audio = model_with().encoders[1];
  const ItemShape clip = audio.clip_shape(25);
  EXPECT_EQ(clip.mel_columns, 25);
  EXPECT_EQ(clip.tokens, 14);  // of 13, one of which has no partner
  EXPECT_EQ(clip.features, 6);
  EXPECT_EQ(clip.windows(), (std::vector<int64_t>{5, 5, 3}));
  EXPECT_EQ(clip.most_seen(5), 5);
  EXPECT_EQ(audio.clip_shape(1000).mel_columns, 100);  // a second
  EXPECT_EQ(audio.shape_within(4).features, 4);
}

/// Temporal patches need not take whole seconds.
TEST(QwenOmni, CountsTimeInFractionsOfSeconds) {
  const EncoderSpec vision = model_with({{"position_id_per_seconds", 10}}).encoders[0];
  const ItemShape video = vision.video_shape({480, 640}, 8, 3);
  std::vector<float> times;
  for (int64_t moment = 0; moment < 4; ++moment) times.push_back(video.time_of(moment));
  EXPECT_EQ(times, (std::vector<float>{0, 6, 13, 20}));
  EXPECT_EQ(vision.video_shape({480, 640}, 2, 0).time_of(1), 10);
  const EncoderSpec usual = model_with({{"position_id_per_seconds", 25}}).encoders[0];
  EXPECT_EQ(usual.video_shape({480, 640}, 20, 0.3333).time_of(7), 1050);
  EXPECT_EQ(usual.video_shape({480, 640}, 20, 0.333).time_of(7), 1051);
}

TEST(QwenOmni, RefusesWhatDoesNotFit) {
  EXPECT_NE(refusal({{"audio_config", {{"output_dim", 20}}}}).find("24, the text's hidden_size"),
            std::string::npos);
  EXPECT_NE(refusal({{"audio_config", {{"n_window", 2000}}}}).find("max_source_positions = 1500"),
            std::string::npos);
  EXPECT_NE(refusal({{"feature_extractor", {{"hop_length", 80}}}}).find("allowed: 160"),
            std::string::npos);
  EXPECT_NE(refusal({{"audio_config", {{"scale_embedding", true}}}}).find("scale_embedding"),
            std::string::npos);
}

ModelSpec moe_with(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen3_omni_config());
  config.merge_patch(changes);
  return make_model_spec(config.dump());
}

TEST(QwenOmniMoe, HasExpertsAndFeaturesOfSeveralDepths) {
  const ModelSpec model = moe_with();
  EXPECT_EQ(model.modules(), (std::vector<std::string>{"vision", "audio", "llm"}));
  for (const char* name :
       {"visual.blocks.0.attn.qkv.weight", "visual.merger_list.1.ln_q.weight",
        "visual.merger.mlp.2.bias", "audio_tower.conv2d3.bias", "audio_tower.conv_out.weight",
        "audio_tower.layers.1.self_attn.k_proj.bias", "audio_tower.proj2.weight",
        "model.layers.3.mlp.experts.5.gate_proj.weight", "lm_head.weight"})
    EXPECT_GE(model.param_index(name), 0) << name;
  nlohmann::json whole{{"model_type", "qwen3_omni_moe"}, {"enable_audio_output", true}};
  whole["thinker_config"] = nlohmann::json::parse(tiny_qwen3_omni_config());
  whole["thinker_config"].erase("feature_extractor");
  whole["talker_config"] = {{"num_code_groups", 16}};
  const ModelSpec all = make_model_spec(whole.dump());
  EXPECT_GE(all.param_index("thinker.audio_tower.conv2d1.weight"), 0);
  EXPECT_EQ(all.num_parameters(), model.num_parameters());
  ASSERT_EQ(all.notes.size(), 1U);
  EXPECT_NE(all.notes[0].find("code2wav_config"), std::string::npos);
}

/// The number of parameters is that of transformers' model of this config.
TEST(QwenOmniMoe, HasTheParametersOfThePublishedModel) {
  std::ifstream file(ZEA_INPUTS "/qwen3_omni_30b_a3b.json");
  const std::string config{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(make_model_spec(config).num_parameters(), 31719205488);
}

/// A chunk of 100 columns has 13 features; the last chunk is padded, unless it is the only one.
TEST(QwenOmniMoe, MakesFeaturesOfChunks) {
  const EncoderSpec audio = moe_with({{"audio_config", {{"n_window_infer", 250}}}}).encoders[1];
  const MelInput& input = audio.mels();
  EXPECT_EQ(input.chunk_positions(), 13);
  EXPECT_EQ(input.columns(), 200);
  const ItemShape clip = audio.clip_shape(130);
  EXPECT_EQ(clip.mel_columns, 130);
  EXPECT_EQ(clip.tokens, 13 + 4);
  EXPECT_EQ(clip.windows(), (std::vector<int64_t>{17}));  // of 26
  EXPECT_EQ(moe_with().encoders[1].clip_shape(130).windows(), (std::vector<int64_t>{13, 4}));
  EXPECT_EQ(input.chunk_columns(130), 100);
  EXPECT_EQ(input.chunk_columns(30), 30);
  EXPECT_EQ(input.columns_of(17), 132);
  EXPECT_EQ(audio.shape_within(15).features, 15);
  EXPECT_EQ(input.columns_after(1, 13), 50);
  EXPECT_EQ(input.columns_after(2, 13), 25);
  // A chunk, and the 96 columns that make at most 12 positions.
  EXPECT_EQ(input.columns_after(1, 25), 98);
  EXPECT_EQ(input.columns_after(2, 25), 49);
}

/// Published directories have n_samples without chunk_length.
TEST(QwenOmniMoe, TakesTheLongestClipOfItsFeatureExtractor) {
  const auto columns_with = [](const nlohmann::json& extractor, int64_t window) {
    const ModelSpec model =
        moe_with({{"audio_config", {{"n_window", window}}}, {"feature_extractor", extractor}});
    return model.encoders[1].mels().columns();
  };
  EXPECT_EQ(columns_with({{"chunk_length", nullptr}, {"n_samples", 4800000}}, 50), 30000);
  EXPECT_EQ(columns_with({{"chunk_length", nullptr}, {"n_samples", 72000}}, 50), 400);
  EXPECT_EQ(columns_with({{"chunk_length", nullptr}}, 50), 30000);
  EXPECT_EQ(columns_with({{"chunk_length", 30}, {"n_samples", 4800000}}, 50), 3000);
  EXPECT_EQ(columns_with({{"chunk_length", 30}}, 49), 3000);  // which end in a part of a chunk
}

TEST(QwenOmniMoe, RefusesWhatDoesNotFit) {
  const auto refused = [](const nlohmann::json& changes) {
    nlohmann::json config = nlohmann::json::parse(tiny_qwen3_omni_config());
    config.merge_patch(changes);
    return refusal_of(config);
  };
  const auto of_audio = [&](const char* key, int64_t value) {
    return refused({{"audio_config", {{key, value}}}});
  };
  EXPECT_NE(of_audio("n_window", 40).find("49 to 52"), std::string::npos);
  EXPECT_NE(of_audio("n_window_infer", 60).find("2 n_window = 100"), std::string::npos);
  EXPECT_NE(of_audio("max_source_positions", 12).find("13 (features of a chunk)"),
            std::string::npos);
  EXPECT_NE(of_audio("downsample_hidden_size", 5000).find("1 to 4096"), std::string::npos);
  EXPECT_NE(refused({{"feature_extractor", {{"chunk_length", nullptr}, {"n_samples", 900}}}})
                .find("16000 to 57600000"),
            std::string::npos);
  EXPECT_NE(refused({{"text_config", {{"sliding_window", 8}}}}).find("no layer has a window"),
            std::string::npos);
}

}  // namespace
}  // namespace zea::testing::test_qwen_omni
