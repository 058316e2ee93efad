// SPDX-License-Identifier: Apache-2.0
#include "support/measured_models.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "spec/adapters.hpp"
#include "support/made_up_models.hpp"
#include "support/measured_decoders.hpp"
#include "support/tiny_kimi_k25.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"
#include "support/tiny_qwen3_next.hpp"

namespace zea::testing {
namespace {

using namespace measured;

std::string llava_config(bool variant) {
  TinyLlava tiny{.tied = variant, .kv_heads = variant ? 4 : 1, .layers = 1};
  if (variant) tiny.feature_layer = "[0, -1, 1]";
  if (variant) tiny.select = "full";
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config(tiny));
  auto& text = config["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  text["head_dim"] = 30;
  text["vocab_size"] = 1307;
  text["attention_bias"] = text["mlp_bias"] = variant;
  auto& vision = config["vision_config"];
  vision["hidden_size"] = 78;
  vision["intermediate_size"] = 202;
  vision["image_size"] = variant ? 60 : 20;  // 226 tokens: too long for our own kernels
  vision["hidden_act"] = variant ? "relu" : "quick_gelu";
  config["projector_hidden_act"] = variant ? "relu" : "gelu";
  return config.dump();
}

std::string adapted_config() {
  const std::string text =
      with_adapters(llava_config(false), "llm", {.targets = {"*"}, .rank = 12, .dropout = 0.1});
  return with_adapters(text, "vision",
                       {.targets = {"k_proj", "fc1", "linear_1"}, .rank = 7, .dropout = 0.1});
}

/// Experts whose adapters take more than those that train; `is_stacked`: adapters of their stacks.
std::string adapted_experts_config(bool is_stacked) {
  const std::vector<std::string> of_each{"gate", "*experts.*", "*shared*", "q_proj"};
  const std::vector<std::string> of_stacks{"experts.gate_up_proj", "experts.down_proj"};
  return with_adapters(with_experts(llava_config(false)), "llm",
                       {.targets = is_stacked ? of_stacks : of_each, .rank = 12});
}

std::string siglip_config() {
  nlohmann::json config = nlohmann::json::parse(
      tiny_llava_config({.layers = 1, .vision_hidden = 78, .image_size = 48, .siglip = true}));
  auto& text = config["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  config["vision_config"]["intermediate_size"] = 202;
  return config.dump();
}

/// LLaVA with registers, layer scale and a gated MLP.
std::string dinov2_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.layers = 1}));
  config["text_config"]["hidden_size"] = 116;
  config["vision_config"] = {{"model_type", "dinov2_with_registers"},
                             {"hidden_size", 78},
                             {"num_hidden_layers", 1},
                             {"num_attention_heads", 2},
                             {"image_size", 20},
                             {"patch_size", 4},
                             {"num_register_tokens", 3},
                             {"use_swiglu_ffn", true}};
  config["vision_feature_layer"] = -1;
  return config.dump();
}

/// Returns a config with a tower and a language model for tiles; `family` has the other keys of the
/// config, and `tower` those of the tower other than sizes.
std::string tiled_config(nlohmann::json family, const nlohmann::json& tower) {
  nlohmann::json text = nlohmann::json::parse(tiny_llava_config({.layers = 1}))["text_config"];
  text.update({{"hidden_size", 116}, {"intermediate_size", 284}});
  nlohmann::json vision{{"hidden_size", 78},      {"intermediate_size", 202},
                        {"num_hidden_layers", 1}, {"num_attention_heads", 2},
                        {"image_size", 24},       {"patch_size", 4}};
  vision.update(tower);
  family.update({{"image_token_id", 3}, {"text_config", text}, {"vision_config", vision}});
  return family.dump();
}

std::string internvl_config() {
  return tiled_config({{"model_type", "internvl"}},
                      {{"use_qk_norm", true}, {"norm_type", "rms_norm"}});
}

/// Squares of so many patches of a tile are a feature; images become up to four tiles.
std::string idefics3_config(const char* family, int64_t square) {
  return tiled_config({{"model_type", family}, {"scale_factor", square}},
                      {{"size", {{"longest_edge", 48}}}});
}

/// Without registers, layer scale or gates.
std::string vit_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.layers = 1}));
  config["text_config"]["hidden_size"] = 116;
  config["vision_config"] = {{"model_type", "vit"},      {"hidden_size", 78},
                             {"num_hidden_layers", 1},   {"num_attention_heads", 2},
                             {"intermediate_size", 202}, {"image_size", 20},
                             {"patch_size", 4}};
  config["vision_feature_layer"] = -1;
  return config.dump();
}

/// Images have up to four tiles and the whole image, with learned ends of rows.
std::string llava_next_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.layers = 1}));
  config["model_type"] = "llava_next";
  config["image_grid_pinpoints"] = {{20, 40}, {40, 40}};
  config["text_config"]["hidden_size"] = 116;
  config["vision_config"].update({{"hidden_size", 78}, {"intermediate_size", 202}});
  config["vision_config"]["image_size"] = 20;
  return config.dump();
}

/// Features of images are resampled to about those of one tile.
std::string llava_onevision_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.layers = 1, .siglip = true}));
  config["model_type"] = "llava_onevision";
  config["video_token_index"] = 4;
  config["vision_feature_select_strategy"] = "full";
  config["vision_aspect_ratio"] = "anyres_max_1";
  config["image_grid_pinpoints"] = {{40, 40}, {40, 80}};
  config["text_config"]["hidden_size"] = 116;
  config["vision_config"].update({{"hidden_size", 78}, {"intermediate_size", 202}});
  config["vision_config"]["image_size"] = 20;
  return config.dump();
}

void crop_images(ModelSpec& model) {
  model.encoders.at(0).patches().as<SquareImages>()->pan_and_scan =
      PanAndScan{.most = 2, .least_side = 1, .least_ratio = 1};
}

void cut_into_few(ModelSpec& model) {
  model.encoders.at(0).patches().limit_tiles({.most = 4});
}

nlohmann::json wide_qwen_vl(const std::string& tiny) {
  nlohmann::json config = nlohmann::json::parse(tiny);
  auto& text = config["text_config"];
  text["hidden_size"] = 120;
  text["intermediate_size"] = 284;
  text["vocab_size"] = 1307;
  text["num_hidden_layers"] = config["vision_config"]["depth"] = 1;
  text["rope_parameters"]["mrope_section"] = std::vector<int>{8, 10, 12};
  return config;
}

std::string qwen2_vl_config() {
  nlohmann::json config = wide_qwen_vl(tiny_qwen2_vl_config());
  config["vision_config"]["hidden_size"] = 120;
  config["vision_config"]["embed_dim"] = 72;
  return config.dump();
}

/// Its only block sees windows.
std::string qwen2_5_vl_config() {
  nlohmann::json config = wide_qwen_vl(tiny_qwen2_5_vl_config());
  config["vision_config"].update(
      {{"hidden_size", 72}, {"intermediate_size", 164}, {"out_hidden_size", 120}});
  return config.dump();
}

/// Clips are longer than a chunk, whose length is odd.
std::string qwen2_5_omni_config() {
  nlohmann::json config = wide_qwen_vl(tiny_qwen2_5_omni_config());
  config["vision_config"].update(
      {{"hidden_size", 72}, {"intermediate_size", 164}, {"out_hidden_size", 120}});
  config["audio_config"].update({{"d_model", 76},
                                 {"encoder_ffn_dim", 202},
                                 {"encoder_layers", 1},
                                 {"n_window", 21},
                                 {"num_mel_bins", 17},
                                 {"output_dim", 120}});
  config["feature_extractor"]["feature_size"] = 17;
  return config.dump();
}

std::string qwen3_vl_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen3_vl_config());
  config["text_config"].update({{"hidden_size", 120},
                                {"intermediate_size", 284},
                                {"vocab_size", 1307},
                                {"num_hidden_layers", 1},
                                {"head_dim", 60}});
  config["text_config"]["rope_parameters"]["mrope_section"] = std::vector<int>{10, 10, 10};
  config["vision_config"].update({{"hidden_size", 72},
                                  {"intermediate_size", 164},
                                  {"out_hidden_size", 120},
                                  {"depth", 1},
                                  {"deepstack_visual_indexes", {0}}});
  return config.dump();
}

std::string qwen3_vl_moe_config() {
  nlohmann::json config = nlohmann::json::parse(qwen3_vl_config());
  config["model_type"] = "qwen3_vl_moe";
  config["text_config"].update(
      {{"num_experts", 6}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 68}});
  return config.dump();
}

/// Clips are longer than a chunk; the convolutions have odd numbers of output columns and bins.
std::string qwen3_omni_config() {
  nlohmann::json config = nlohmann::json::parse(qwen3_vl_moe_config());
  const nlohmann::json tiny = nlohmann::json::parse(tiny_qwen3_omni_config());
  for (const char* key : {"model_type", "audio_token_id", "audio_config"}) config[key] = tiny[key];
  for (const char* part : {"text_config", "vision_config"})
    config[part]["model_type"] = tiny[part]["model_type"];
  config["audio_config"].update({{"d_model", 76},
                                 {"downsample_hidden_size", 11},
                                 {"encoder_ffn_dim", 202},
                                 {"encoder_layers", 1},
                                 {"n_window_infer", 200},
                                 {"num_mel_bins", 17},
                                 {"output_dim", 120}});
  config["feature_extractor"] = {{"chunk_length", 3}, {"feature_size", 17}};
  return config.dump();
}

std::string gemma3_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.tied = true,
                                                                   .layers = 1,
                                                                   .vision_hidden = 78,
                                                                   .vocabulary = 1307,
                                                                   .image_size = 48,
                                                                   .siglip = true,
                                                                   .gemma3 = true}));
  auto& text = config["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  text["head_dim"] = 30;
  config["vision_config"]["intermediate_size"] = 202;
  return config.dump();
}

std::string mistral3_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config(
      {.layers = 1, .vision_hidden = 76, .image_size = 48, .pixtral = true, .merges = true}));
  auto& text = config["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  config["vision_config"]["intermediate_size"] = 202;
  return config.dump();
}

std::string audio_config(bool has_vision) {
  nlohmann::json config = nlohmann::json::parse(
      tiny_llava_config({.layers = 1, .vision = has_vision, .audio = true, .audio_layers = 1}));
  auto& text = config["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  auto& audio = config["audio_config"];
  audio["d_model"] = 78;
  audio["encoder_ffn_dim"] = 202;
  audio["num_mel_bins"] = 17;
  audio["max_source_positions"] = has_vision ? 21 : 131;
  return config.dump();
}

/// Clips of their own length, two of whose positions are averaged; or three side by side.
std::string heard_config(bool averages) {
  const nlohmann::json text{{"model_type", "llama"},
                            {"hidden_size", 116},
                            {"intermediate_size", 284},
                            {"num_hidden_layers", 1},
                            {"num_attention_heads", 4},
                            {"num_key_value_heads", 2},
                            {"max_position_embeddings", 99},
                            {"head_dim", 28},
                            {"rms_norm_eps", 1e-5},
                            {"rope_theta", 1e4},
                            {"vocab_size", 1111}};
  nlohmann::json audio{{"num_mel_bins", 17}, {"max_source_positions", averages ? 131 : 132}};
  if (averages)
    audio.update({{"model_type", "qwen2_audio_encoder"},
                  {"d_model", 78},
                  {"encoder_ffn_dim", 202},
                  {"encoder_layers", 1},
                  {"encoder_attention_heads", 2}});
  else
    audio.update({{"model_type", "voxtral_encoder"},
                  {"hidden_size", 78},
                  {"intermediate_size", 234},
                  {"num_hidden_layers", 1},
                  {"num_attention_heads", 2}});
  return nlohmann::json{{"model_type", averages ? "qwen2_audio" : "voxtral"},
                        {"audio_token_id", 4},
                        {"audio_config", audio},
                        {"text_config", text}}
      .dump();
}

std::string gpt2_config(bool tied) {
  return nlohmann::json{{"model_type", "gpt2"},
                        {"n_embd", 92},
                        {"n_layer", 1},
                        {"n_head", 4},
                        {"n_positions", 640},
                        {"vocab_size", 1111},
                        {"activation_function", tied ? "gelu_new" : "relu"},
                        {"tie_word_embeddings", tied}}
      .dump();
}

/// Clips have at most 21 positions.
void shorten_clips(ModelSpec& model) {
  for (EncoderSpec& encoder : model.encoders)
    if (auto* mels = std::get_if<MelInput>(&encoder.input)) mels->positions = 21;
}

void drop_rows(ModelSpec& model) {
  model.decoder.block.dropout = model.decoder.embedding_dropout = 0.1;
  record_graphs(model);
}

/// A layer with the gated delta rule and one with gated attention.
nlohmann::json wide_hybrid(const std::string& family) {
  nlohmann::json config = nlohmann::json::parse(tiny_hybrid_config(family, 2));
  config.update({{"hidden_size", 120},
                 {"head_dim", 32},
                 {"vocab_size", 1307},
                 {"linear_num_key_heads", 4},  // one for each of tp 2 x cp 2 ranks
                 {"linear_num_value_heads", 8},
                 {"linear_key_head_dim", 18},
                 {"linear_value_head_dim", 26}});
  if (config.contains("intermediate_size")) config["intermediate_size"] = 284;
  if (config.contains("num_experts"))
    config.update({{"moe_intermediate_size", 68}, {"shared_expert_intermediate_size", 92}});
  return config;
}

std::string hybrid_config(const std::string& family) {
  return wide_hybrid(family).dump();
}

std::string qwen3_5_config(const std::string& family) {
  nlohmann::json config = nlohmann::json::parse(qwen3_vl_config());
  config["model_type"] = family;
  config["text_config"] = wide_hybrid(family + "_text");
  config["text_config"]["rope_parameters"] = {{"rope_type", "default"},
                                              {"mrope_section", {3, 3, 2}}};
  config["vision_config"].erase("deepstack_visual_indexes");
  return config.dump();
}

std::string glm4v_moe_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_glm4v_moe_config());
  auto& text = config["text_config"];
  text["hidden_size"] = 116;
  text["intermediate_size"] = 284;
  text["num_attention_heads"] = 4;
  text["num_key_value_heads"] = 2;
  text["head_dim"] = 12;
  text["vocab_size"] = 1307;
  text["moe_intermediate_size"] = 44;
  auto& vision = config["vision_config"];
  vision["hidden_size"] = 72;
  vision["intermediate_size"] = 202;
  vision["out_hidden_size"] = 116;
  return config.dump();
}

std::string glm46v_config() {
  nlohmann::json config = nlohmann::json::parse(glm4v_moe_config());
  config["model_type"] = "glm46v";
  config["text_config"]["model_type"] = "glm4v_moe_text";
  return config.dump();
}

std::string glm4v_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_glm4v_config());
  const nlohmann::json wide = nlohmann::json::parse(glm4v_moe_config());
  config["vision_config"] = wide["vision_config"];
  auto& text = config["text_config"];
  for (const char* key :
       {"intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size"})
    text[key] = wide["text_config"][key];
  text["hidden_size"] = config["vision_config"]["out_hidden_size"] = 112;
  text["rope_parameters"]["mrope_section"] = {3, 2, 2};
  return config.dump();
}

std::string kimi_k25_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_kimi_k25_config());
  config["text_config"] = nlohmann::json::parse(deepseek_config());
  config["vision_config"]["hidden_size"] = config["projection_hidden_size"] = 72;
  config["vision_config"]["intermediate_size"] = 202;
  return config.dump();
}

}  // namespace

const std::vector<MeasuredModel>& measured_models() {
  static const std::vector<MeasuredModel> all{
      {"llava", llava_config(false)},
      {"llava with taps, biases and full attention", llava_config(true)},
      {"llava with adapters", adapted_config()},
      {"adapters of each expert", adapted_experts_config(false)},
      {"adapters of stacked experts", adapted_experts_config(true)},
      {"llava with images of any size, four patches a feature", siglip_config(),
       merge_images_of_any_size},
      {"llava with a table of positions laid over images", siglip_config(), fill_patches},
      {"llava with registers", dinov2_config()},
      {"internvl", internvl_config(), cut_into_few},
      {"smolvlm", idefics3_config("smolvlm", 2)},
      {"idefics3", idefics3_config("idefics3", 3)},
      {"llava of vit", vit_config()},
      {"llava_next", llava_next_config()},
      {"llava_onevision", llava_onevision_config()},
      {"qwen2_vl", qwen2_vl_config(), shrink_images},
      {"qwen2_5_vl", qwen2_5_vl_config(), shrink_images},
      {"qwen2_5_omni_thinker", qwen2_5_omni_config(), shrink_images},
      {"qwen3_vl", qwen3_vl_config(), shrink_images},
      {"qwen3_vl_moe", qwen3_vl_moe_config(), shrink_images},
      {"qwen3_omni_moe_thinker", qwen3_omni_config(), shrink_images},
      {"glm4v", glm4v_config(), shrink_images},
      {"glm4v_moe", glm4v_moe_config(), shrink_images},
      {"glm46v", glm46v_config(), shrink_images},
      {"kimi_k25", kimi_k25_config(), shrink_images},
      {"qwen3_5", qwen3_5_config("qwen3_5"), shrink_images},
      {"qwen3_5_moe", qwen3_5_config("qwen3_5_moe"), shrink_images},
      {"gemma3", gemma3_config()},
      {"gemma3 with crops beside images", gemma3_config(), crop_images},
      {"mistral3", mistral3_config()},
      {"llava with audio", audio_config(true)},
      {"llava with long clips and no images", audio_config(false)},
      {"clips of their own length, averaged", heard_config(true)},
      {"three positions of sound side by side", heard_config(false)},
      {"gpt2", gpt2_config(true)},
      {"gpt2 untied, with dropout", gpt2_config(false), drop_rows},
      {"llama", decoder_config("llama", false)},
      {"qwen2", decoder_config("qwen2", false)},
      {"qwen3", decoder_config("qwen3", false)},
      {"gemma", decoder_config("gemma", true)},
      {"gemma2", decoder_config("gemma2", true)},
      {"gemma3_text", decoder_config("gemma3_text", true)},
      {"glm4_moe", glm_config()},
      {"gpt_oss", gpt_oss_config()},
      {"deepseek_v3", deepseek_config()},
      {"mixtral", moe_config("mixtral")},
      {"olmoe", moe_config("olmoe")},
      {"gemma4_text", gemma4_config()["text_config"].dump()},
      {"gemma4", gemma4_config().dump()},
      {"gemma4_text with experts", gemma4_experts_config()},
      {"gemma4_text with shared keys and inputs of each layer", gemma4_e4b_config()},
      {"gemma4 with images", seeing_gemma4_config(false), shrink_images},
      {"gemma4 with images and clipped linears", seeing_gemma4_config(true), shrink_images},
      {"gemma4 with images, shared keys and inputs of each layer", seeing_gemma4_config(true, true),
       shrink_images},
      {"gemma4 with audio", hearing_gemma4_config(true), shorten_clips},
      {"gemma4 with audio, bounds and windows both ways", hearing_gemma4_config(false),
       shorten_clips},
      {"phi3", phi3_config()},
      {"qwen2_moe", moe_config("qwen2_moe")},
      {"qwen3_moe", moe_config("qwen3_moe")},
      {"qwen3_next", hybrid_config("qwen3_next")},
      {"qwen3_5_text", hybrid_config("qwen3_5_text")},
      {"qwen3_5_moe_text", hybrid_config("qwen3_5_moe_text")},
      {"windows", decoder_config("mistral", false), see_windows},
      {"delta rules", decoder_config("llama", false), mix_delta_rules}};
  return all;
}

const MeasuredModel& measured_model(const std::string& name) {
  const auto found = std::ranges::find(measured_models(), name, &MeasuredModel::name);
  if (found == measured_models().end()) throw std::out_of_range(name);
  return *found;
}

}  // namespace zea::testing
