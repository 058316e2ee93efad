// SPDX-License-Identifier: Apache-2.0
// LLaVA (arXiv:2310.03744): a vision transformer, a projector, and a decoder into whose text the
// features are merged. With an "audio_config", which transformers ignores, the model takes audio,
// too, or only audio.
#include "spec/families.hpp"

namespace zea::detail {
void drop_unread_units(ModelSpec& model) {
  std::vector<bool> read(model.units.size(), false);
  read.back() = true;
  for (size_t u = model.units.size(); u-- > 0;)
    if (read[u])
      for (const UnitInput& input : model.units[u].inputs) read[input.unit] = true;
  std::vector<int> position(model.units.size(), -1);
  std::vector<UnitSpec> kept;
  for (size_t u = 0; u < model.units.size(); ++u) {
    if (!read[u]) {
      for (int param : model.units[u].params)
        model.params[param].used = model.params[param].trainable = false;
      continue;
    }
    position[u] = static_cast<int>(kept.size());
    kept.push_back(model.units[u]);
    for (UnitInput& input : kept.back().inputs) input.unit = position[input.unit];
  }
  model.units = std::move(kept);
}

/// Features take the places of placeholders, which learned positions count, too.
Decoder read_merging_decoder(const ConfigReader& config, const std::string& usual) {
  Decoder decoder = read_part(decoders(), config, usual);
  if (decoder.spec.learned_positions)
    config.refuse("model_type", config.text("model_type", ""),
                  "a decoder with rotary positions (others are not built yet)");
  if (decoder.spec.logit_softcap > 0)
    config.refuse("final_logit_softcapping", std::to_string(decoder.spec.logit_softcap),
                  "null (the head of transformers' composites caps no logits)");
  return decoder;
}

bool ties_head(const ConfigReader& config, const Decoder& text, bool text_ties) {
  const bool of_text = text.spec.tied_embeddings;
  const bool tied = config.boolean("tie_word_embeddings", of_text);
  return tied || (text_ties && of_text);
}

ModelSpec make_with_tower(const Decoder& decoder, const VisionEncoder& encoder,
                          const std::string& tower, const std::string& text,
                          const Trainable& trainable, const AddProjector& add_projector) {
  ModelSpec model;
  model.decoder = decoder.spec;
  model.encoders = {encoder.spec};
  SpecBuilder builder(model);
  const std::vector<int> states =
      add_vision_encoder(builder, encoder, tower, trainable.of(encoder.spec.name).encoder);
  const std::vector<int> features = add_projector(builder, states);
  add_carried(builder, encoder, tower);
  add_decoder(builder, decoder, text, {features.front()}, trainable.llm);
  add_deep_features(model, {features.begin() + 1, features.end()});
  drop_unread_units(model);
  return model;
}

void add_deep_features(ModelSpec& model, const std::vector<int>& deep) {
  auto next = deep.begin();
  for (UnitSpec& unit : model.units)
    if (unit.module == kDecoder && unit.kind == UnitKind::Block && next != deep.end())
      unit.inputs.push_back({*next++, true});
}

ModelSpec make_with_images(const ConfigReader& config, const Trainable& trainable,
                           const EncoderNames& names, const ImageDefaults& defaults,
                           const std::string& usual) {
  ModelSpec model;
  Decoder decoder = read_merging_decoder(config.object("text_config"), usual);
  decoder.spec.tied_embeddings = ties_head(config, decoder, defaults.text_ties);
  model.decoder = decoder.spec;
  SpecBuilder builder(model);
  const int features = add_image_encoder(builder, model, config, names, trainable, defaults);
  add_decoder(builder, decoder, "language_model.", {features}, trainable.llm);
  drop_unread_units(model);
  return model;
}

ModelSpec make_llava(const ConfigReader& config, const Trainable& trainable) {
  if (!config.has("text_config"))
    config.refuse("text_config", "nothing", "an object" + advice_on_type(config));
  config.ignore_keys({"ignore_index", "image_seq_length", "vocab_size"});
  ModelSpec model;
  Decoder decoder = read_merging_decoder(config.object("text_config"), "llama");
  decoder.spec.tied_embeddings = ties_head(config, decoder, true);
  model.decoder = decoder.spec;
  SpecBuilder builder(model);
  std::vector<int> features;
  const bool has_audio = config.has("audio_config");
  if (config.has("vision_config") || !has_audio)
    features.push_back(add_image_encoder(
        builder, model, config, {"vision", "vision_tower.", "multi_modal_projector."}, trainable));
  else
    config.ignore_keys({"image_token_id", "image_token_index", "vision_feature_layer",
                        "vision_feature_select_strategy"});
  if (has_audio)
    features.push_back(add_sound_encoder(builder, model, config,
                                         {"audio", "audio_tower.", "audio_projector."}, trainable));
  add_decoder(builder, decoder, "language_model.", features, trainable.llm);
  drop_unread_units(model);
  return model;
}

/// Mistral 3 (Mistral Small 3.1): Pixtral's vision transformer, a merger that makes one patch of a
/// square of them, LLaVA's projector, and a Mistral decoder.
ModelSpec make_mistral3(const ConfigReader& config, const Trainable& trainable) {
  config.object("vision_config").require_text("model_type", "pixtral");
  return make_with_images(config, trainable, {"vision", "vision_tower.", "multi_modal_projector."},
                          {.encoder = "pixtral",
                           .token = 10,
                           .layer = -1,
                           .select = "full",
                           .bias = false,
                           .merges = true},
                          "mistral");
}

}  // namespace zea::detail
