// SPDX-License-Identifier: Apache-2.0
// Language models with audio: an encoder like Whisper's, a projector, and a decoder. Qwen2-Audio
// (arXiv:2407.10759) averages two positions and takes a clip's own length; Voxtral
// (arXiv:2507.13264) concatenates four, in windows that are padded with silence.
#include "spec/families.hpp"

namespace zea::detail {
namespace {

/// `key` or its other name; `fallback` may be -1, that there is none.
int64_t read_audio_token(const ConfigReader& config, int64_t fallback) {
  const int64_t token =
      config.integer("audio_token_index", config.integer("audio_token_id", fallback));
  if (token < 0) config.refuse("audio_token_id", std::to_string(token), "0 or more");
  return token;
}

ModelSpec make_audio_llm(const ConfigReader& config, EncoderSpec audio, const char* usual_decoder,
                         const Trainable& trainable) {
  Decoder decoder = read_merging_decoder(config.object("text_config"), usual_decoder);
  // Transformers has a head of its own here, whatever both configs say.
  config.ignore_keys({"tie_word_embeddings"});
  decoder.spec.tied_embeddings = false;
  audio.name = "audio";
  ModelSpec model;
  model.decoder = decoder.spec;
  model.encoders = {audio};
  SpecBuilder builder(model);
  add_audio_encoder(builder, audio, {audio.name, "audio_tower.", "multi_modal_projector."},
                    decoder.spec.block.hidden, trainable);
  add_decoder(builder, decoder, "language_model.", {builder.last_unit()}, trainable.llm);
  return model;
}

}  // namespace

ModelSpec make_qwen2_audio(const ConfigReader& config, const Trainable& trainable) {
  config.ignore_keys({"ignore_index", "vocab_size"});
  EncoderSpec audio = read_qwen2_audio_encoder(config.object("audio_config"));
  audio.placeholder = read_audio_token(config, 151646);
  return make_audio_llm(config, audio, "qwen2", trainable);
}

/// Requires keys whose defaults in transformers differ from those of the decoder's own family.
ModelSpec make_voxtral(const ConfigReader& config, const Trainable& trainable) {
  config.ignore_keys({"hidden_size", "vocab_size"});
  const ConfigReader text = config.object("text_config");
  for (const char* key : {"head_dim", "hidden_size", "intermediate_size", "max_position_embeddings",
                          "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "vocab_size"})
    if (!text.has(key)) text.refuse(key, "nothing", "a number");
  if (!text.has("rope_parameters") && !text.has("rope_theta"))
    text.refuse("rope_parameters", "nothing", "an object, or rope_theta");
  EncoderSpec audio = read_voxtral_encoder(config.object("audio_config"));
  audio.projector.activation = config.activation("projector_hidden_act", "gelu");
  audio.placeholder = read_audio_token(config, -1);
  return make_audio_llm(config, audio, "llama", trainable);
}

}  // namespace zea::detail
