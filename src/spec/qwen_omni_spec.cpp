// SPDX-License-Identifier: Apache-2.0
// Qwen2.5-Omni (arXiv:2503.20215): the thinker has the vision encoder and language model of
// Qwen2.5-VL, with temporal positions that are not rounded to seconds, and Whisper's encoder over
// chunks of a clip. Qwen3-Omni (arXiv:2509.17765): the thinker has the vision encoder and language
// model of Qwen3-VL-MoE, with fractional temporal positions, and an audio encoder of three 2-D
// convolutions over chunks of a clip and Whisper's blocks. The talker and the vocoder, which
// generate speech, are copied unchanged. A directory may hold the thinker alone.
#include "spec/qwen_vl.hpp"

namespace zea::detail {
namespace {

constexpr int64_t kOmniWidth = 3584;  ///< of features, where the config does not say it
constexpr LlamaDefaults kOmniText{.hidden = 3584,
                                  .intermediate = 18944,
                                  .layers = 28,
                                  .heads = 28,
                                  .key_value_heads = 4,
                                  .vocabulary = 152064,
                                  .positions = 32768,
                                  .end_token = -1,
                                  .eps = 1e-6,
                                  .theta = 1e6,
                                  .has_mrope = true};
constexpr LlamaDefaults kOmniMoeText{.hidden = 2048,
                                     .intermediate = 18944,
                                     .layers = 28,
                                     .heads = 28,
                                     .key_value_heads = 4,
                                     .vocabulary = 3584,
                                     .positions = 32768,
                                     .end_token = -1,
                                     .eps = 1e-6,
                                     .theta = 1e6,
                                     .has_mrope = true};
constexpr DeepMergers kOmniMergers{kWindowedMerger, "merger_list."};

/// Pixel limits of frames, which transformers' processor sets; files do not change them. `side`:
/// the pixels along a side of a feature.
constexpr PixelLimits frame_limits(int64_t side) {
  return {.least = 128 * side * side, .most = 768 * side * side};
}

int64_t read_omni_token(const ConfigReader& config, const std::string& item, int64_t usual) {
  const std::string index = item + "_token_index", id = item + "_token_id";
  return config.integer(id.c_str(), config.integer(index.c_str(), usual));
}

/// The encoders and the language model of a thinker.
struct Thinker {
  Decoder decoder;
  VisionEncoder vision;
  EncoderSpec audio;
  EncoderNames audio_names;  ///< without their root
  std::vector<int64_t> depths = {};
  bool has_audio_marks = false;
};

void read_omni_tokens(const ConfigReader& thinker, EncoderSpec& vision, EncoderSpec& audio) {
  // Tokens around items are ordinary text; the data set defines how video and audio interleave.
  thinker.ignore_keys({"audio_end_token_id", "audio_start_token_id", "ignore_index", "init_std",
                       "seconds_per_chunk", "user_token_id", "vision_end_token_id",
                       "vision_start_token_id", "vision_token_id"});
  vision.placeholder = read_omni_token(thinker, "image", 151655);
  vision.video_placeholder = read_omni_token(thinker, "video", 151656);
  audio.name = "audio";
  audio.placeholder = read_omni_token(thinker, "audio", 151646);
  if (audio.placeholder < 0 || vision.is_placeholder(audio.placeholder))
    thinker.refuse("audio_token_id", std::to_string(audio.placeholder),
                   "0 or more, and not the id of images or videos");
}

void set_omni_videos(const ConfigReader& thinker, VideoTime time, int64_t usual_side,
                     VideoInput& video) {
  video.positions_per_second = thinker.positive("position_id_per_seconds", 25);
  video.time = time;
  video.pixels = frame_limits(usual_side);
  video.has_own_limits = true;
}

Thinker read_thinker(const ConfigReader& config) {
  const ConfigReader text = config.object("text_config"),
                     of_vision = config.object("vision_config");
  text.require_text("model_type", "qwen2_5_omni_text");
  text.ignore_keys({"init_std", "tie_word_embeddings"});  // the thinker's own key ties them
  of_vision.require_text("model_type", "qwen2_5_omni_vision_encoder");
  of_vision.ignore_keys({"embed_dim", "init_std"});  // published; transformers does not read them
  Thinker thinker{.decoder = read_qwen_vl_text(text, kOmniText, kOmniText.layers),
                  .vision = read_windowed_visual(of_vision),
                  .audio = read_omni_audio_encoder(config.object("audio_config")),
                  .audio_names = {.norm = "ln_post", .linears = {"proj"}},
                  .has_audio_marks = true};
  BlockNames& names = thinker.vision.blocks.names;
  names.q = ".attn.q";
  names.k = ".attn.k";
  names.v = ".attn.v";
  set_omni_videos(config, VideoTime::Rounded, 28, *thinker.vision.spec.patches().video);
  return thinker;
}

Thinker read_moe_thinker(const ConfigReader& config) {
  const ConfigReader text = config.object("text_config"),
                     of_vision = config.object("vision_config");
  text.require_text("model_type", "qwen3_omni_moe_text");
  // Published configs have keys of earlier families, with values that change nothing.
  text.ignore_keys({"max_window_layers", "tie_word_embeddings", "use_sliding_window"});
  text.require_boolean("use_qk_norm", true);
  if (const int64_t shared = text.integer("shared_expert_intermediate_size", 0); shared != 0)
    text.refuse("shared_expert_intermediate_size", std::to_string(shared), "0");
  if (text.has("sliding_window"))
    text.refuse("sliding_window", text.dump("sliding_window"), "null (no layer has a window)");
  text.ignore_keys({"sliding_window"});
  of_vision.require_text("model_type", "qwen3_omni_moe_vision_encoder");
  of_vision.ignore_keys({"apply_vit_abs_pos_embed", "image_size", "tokens_per_second"});
  Thinker thinker{
      .decoder = read_interleaved_text(text, kOmniMoeText),
      .vision = read_deep_visual(of_vision),
      .audio = read_qwen3_omni_audio_encoder(config.object("audio_config")),
      .audio_names = {.norm = "ln_post", .linears = {"proj1", "proj2"}, .has_key_biases = true}};
  add_mixture(text, thinker.decoder, sparse_layers(text, thinker.decoder.spec.layers),
              {.intermediate = 768, .experts = 128, .chosen = 8}, qwen_expert_names(false));
  thinker.depths =
      read_depths(of_vision, thinker.vision.spec.layers, thinker.decoder.spec.layers, true);
  VideoInput& video = *thinker.vision.spec.patches().video;
  set_omni_videos(config, VideoTime::Exact, 32, video);
  video.limits_all = false;
  video.has_text_between = false;
  return thinker;
}

/// The thinker's parameters have the prefix `root`.
ModelSpec make_thinker(const ConfigReader& config, Thinker thinker, const std::string& root,
                       const Trainable& trainable) {
  const ConfigReader of_vision = config.object("vision_config"),
                     of_audio = config.object("audio_config");
  EncoderSpec& vision = thinker.vision.spec;
  read_omni_tokens(config, vision, thinker.audio);
  thinker.decoder.spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  const int64_t hidden = thinker.decoder.spec.block.hidden;
  require_width(of_vision, "out_hidden_size", hidden);
  const int64_t heard = of_audio.positive("output_dim", kOmniWidth);
  if (heard != hidden)
    of_audio.refuse("output_dim", std::to_string(heard),
                    std::to_string(hidden) + ", the text's hidden_size");
  ModelSpec model;
  model.decoder = thinker.decoder.spec;
  model.encoders = {vision, thinker.audio};
  SpecBuilder builder(model);
  const std::string tower = root + "visual.", ear = root + "audio_tower.";
  const Trainable::Encoder sees = trainable.of(vision.name);
  const std::vector<int> states = add_vision_encoder(builder, thinker.vision, tower, sees.encoder);
  const std::vector<int> seen = add_deep_mergers(builder, vision, tower, kOmniMergers,
                                                 thinker.depths, states, hidden, sees.projector);
  EncoderNames names = thinker.audio_names;
  names.name = thinker.audio.name;
  names.root = ear;
  for (std::string& linear : names.linears) linear = ear + linear;
  add_audio_encoder(builder, thinker.audio, names, hidden, trainable);
  const int of_sound = builder.last_unit();
  if (thinker.has_audio_marks) {
    // Embeddings of the beginning and end of a clip: transformers does not use them either.
    builder.start("audio.carried", thinker.audio.name, UnitKind::Block, {});
    builder.add("marks", ear + "audio_bos_eos_token.weight", {2, hidden}, false, 0.02);
  }
  add_decoder(builder, thinker.decoder, root, {seen.front(), of_sound}, trainable.llm);
  add_deep_features(model, {seen.begin() + 1, seen.end()});
  drop_unread_units(model);
  return model;
}

/// Adds the note that the other parts of a whole model are not trained.
ModelSpec with_note(ModelSpec model, const ConfigReader& config, const std::string& vocoder) {
  if (config.has("talker_config"))
    model.notes.push_back("talker_config, " + vocoder +
                          ": talker and vocoder are not trained; exports copy their tensors "
                          "unchanged");
  return model;
}

}  // namespace

ModelSpec make_qwen2_5_omni_thinker(const ConfigReader& config, const Trainable& trainable) {
  return make_thinker(config, read_thinker(config), "", trainable);
}

ModelSpec make_qwen2_5_omni(const ConfigReader& config, const Trainable& trainable) {
  config.ignore_keys({"enable_audio_output", "enable_talker", "talker_config", "token2wav_config"});
  const ConfigReader thinker = config.object("thinker_config");
  return with_note(make_thinker(thinker, read_thinker(thinker), "thinker.", trainable), config,
                   "token2wav_config");
}

ModelSpec make_qwen3_omni_thinker(const ConfigReader& config, const Trainable& trainable) {
  return make_thinker(config, read_moe_thinker(config), "", trainable);
}

ModelSpec make_qwen3_omni(const ConfigReader& config, const Trainable& trainable) {
  config.ignore_keys({"assistant_token_id", "code2wav_config", "enable_audio_output",
                      "im_end_token_id", "im_start_token_id", "system_token_id", "talker_config",
                      "tts_bos_token_id", "tts_eos_token_id", "tts_pad_token_id", "user_token_id"});
  const ConfigReader thinker = config.object("thinker_config");
  return with_note(make_thinker(thinker, read_moe_thinker(thinker), "thinker.", trainable), config,
                   "code2wav_config");
}

}  // namespace zea::detail
