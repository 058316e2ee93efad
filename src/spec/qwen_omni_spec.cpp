// SPDX-License-Identifier: Apache-2.0
// Qwen2.5-Omni (arXiv:2503.20215): its thinker has Qwen2.5-VL's tower and text, whose positions in
// time are not rounded to seconds, and Whisper's encoder over chunks of a clip. The talker and the
// vocoder, which generate speech, are copied unchanged. A directory may hold the thinker alone.
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
/// Limits of frames, which the processor sets whatever the files beside it say.
constexpr PixelLimits kOmniFrames{.least = int64_t{128} * 28 * 28, .most = int64_t{768} * 28 * 28};

int64_t read_omni_token(const ConfigReader& config, const std::string& item, int64_t usual) {
  const std::string index = item + "_token_index", id = item + "_token_id";
  return config.integer(id.c_str(), config.integer(index.c_str(), usual));
}

VisionEncoder read_omni_visual(const ConfigReader& config, const ConfigReader& thinker) {
  config.require_text("model_type", "qwen2_5_omni_vision_encoder");
  config.ignore_keys({"embed_dim", "init_std"});  // of published files; transformers reads neither
  VisionEncoder encoder = read_windowed_visual(config);
  BlockNames& names = encoder.blocks.names;
  names.q = ".attn.q";
  names.k = ".attn.k";
  names.v = ".attn.v";
  VideoInput& video = *encoder.spec.patches().video;
  video.positions_per_second = thinker.positive("position_id_per_seconds", 25);
  video.takes_fractions = true;
  video.pixels = kOmniFrames;
  video.has_own_limits = true;
  encoder.spec.placeholder = read_omni_token(thinker, "image", 151655);
  encoder.spec.video_placeholder = read_omni_token(thinker, "video", 151656);
  return encoder;
}

EncoderSpec read_omni_audio(const ConfigReader& config, const ConfigReader& thinker) {
  EncoderSpec audio = read_omni_audio_encoder(config);
  audio.name = "audio";
  audio.placeholder = read_omni_token(thinker, "audio", 151646);
  return audio;
}

/// The thinker's parameters have the prefix `root`.
ModelSpec make_thinker(const ConfigReader& config, const std::string& root,
                       const Trainable& trainable) {
  // Tokens around items are text like any other; the data say how video and sound take turns.
  config.ignore_keys({"audio_end_token_id", "audio_start_token_id", "ignore_index", "init_std",
                      "seconds_per_chunk", "user_token_id", "vision_end_token_id",
                      "vision_start_token_id", "vision_token_id"});
  const ConfigReader text = config.object("text_config"),
                     of_vision = config.object("vision_config"),
                     of_audio = config.object("audio_config");
  text.require_text("model_type", "qwen2_5_omni_text");
  text.ignore_keys({"init_std", "tie_word_embeddings"});  // the thinker's own key ties them
  Decoder decoder = read_qwen_vl_text(text, kOmniText, kOmniText.layers);
  decoder.spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  const int64_t hidden = decoder.spec.block.hidden;
  const VisionEncoder vision = read_omni_visual(of_vision, config);
  const EncoderSpec audio = read_omni_audio(of_audio, config);
  if (audio.placeholder < 0 || vision.spec.is_placeholder(audio.placeholder))
    config.refuse("audio_token_id", std::to_string(audio.placeholder),
                  "0 or more, and not the id of images or videos");
  require_width(of_vision, "out_hidden_size", hidden);
  const int64_t heard = of_audio.positive("output_dim", kOmniWidth);
  if (heard != hidden)
    of_audio.refuse("output_dim", std::to_string(heard),
                    std::to_string(hidden) + ", the text's hidden_size");
  ModelSpec model;
  model.decoder = decoder.spec;
  model.encoders = {vision.spec, audio};
  SpecBuilder builder(model);
  const std::string tower = root + "visual.", ear = root + "audio_tower.";
  const Trainable::Encoder sees = trainable.of(vision.spec.name);
  const std::vector<int> states = add_vision_encoder(builder, vision, tower, sees.encoder);
  builder.start("vision.projector", "vision", UnitKind::Projector, {{states.back(), false}});
  add_merger(builder, vision.spec, tower + "merger.", kWindowedMerger, hidden, sees.projector);
  std::vector<int> features{builder.last_unit()};
  add_audio_encoder(builder, audio,
                    {.name = audio.name,
                     .root = ear,
                     .projector_root = {},
                     .norm = "ln_post",
                     .linear = ear + "proj"},
                    hidden, trainable);
  features.push_back(builder.last_unit());
  // Embeddings of a clip's beginning and end, which transformers does not read either.
  builder.start("audio.carried", audio.name, UnitKind::Block, {});
  builder.add("marks", ear + "audio_bos_eos_token.weight", {2, hidden}, false, 0.02);
  add_decoder(builder, decoder, root, features, trainable.llm);
  drop_unread_units(model);
  return model;
}

}  // namespace

ModelSpec make_qwen2_5_omni_thinker(const ConfigReader& config, const Trainable& trainable) {
  return make_thinker(config, "", trainable);
}

ModelSpec make_qwen2_5_omni(const ConfigReader& config, const Trainable& trainable) {
  config.ignore_keys({"enable_audio_output", "enable_talker", "talker_config", "token2wav_config"});
  ModelSpec model = make_thinker(config.object("thinker_config"), "thinker.", trainable);
  if (config.has("talker_config"))
    model.notes.push_back(
        "talker_config, token2wav_config: talker and vocoder are not trained; exports copy their "
        "tensors unchanged");
  return model;
}

}  // namespace zea::detail
