// SPDX-License-Identifier: Apache-2.0
// LLaVA (arXiv:2310.03744): a vision transformer, a projector, and a decoder into whose text the
// features are merged. With an "audio_config" beside the vision encoder's, or in its place, the
// model hears, too; transformers passes over that key.
#include <map>

#include "families.hpp"

namespace zea::detail {
namespace {

const std::string kTower = "vision_tower.";

const std::map<std::string, EncoderSpec (*)(const ConfigReader&)> kAudioEncoders{
    {"whisper", read_whisper}};

/// Reads `config` as the family that it names, `usual` where it names none.
template <class Families>
auto read_part(const Families& families, const ConfigReader& config, const std::string& usual) {
  const std::string type = config.text("model_type", usual);
  const auto found = families.find(type);
  if (found != families.end()) return found->second(config);
  std::string names;
  for (const auto& [name, read] : families) names += (names.empty() ? "" : ", ") + name;
  config.refuse("model_type", type, names + " (others are not built yet)");
}

/// Units that no later unit reads are not walked; their parameters are carried, never trained.
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

int64_t resolve_tap(const ConfigReader& config, int64_t layer, int64_t layers) {
  const int64_t state = layer < 0 ? layers + 1 + layer : layer;
  if (state < 0 || state > layers)
    config.refuse("vision_feature_layer", std::to_string(layer),
                  std::to_string(-layers - 1) + " to " + std::to_string(layers));
  return state;
}

/// Features take the places of placeholders, which learned positions count, too.
Decoder read_decoder(const ConfigReader& config) {
  Decoder decoder = read_part(decoders(), config, "llama");
  if (decoder.spec.learned_positions)
    config.refuse("model_type", config.text("model_type", ""),
                  "a decoder with rotary positions (others are not built yet)");
  return decoder;
}

VisionEncoder read_vision(const ConfigReader& config) {
  VisionEncoder encoder =
      read_part(vision_encoders(), config.object("vision_config"), "clip_vision_model");
  for (int64_t layer : config.integers("vision_feature_layer", -2))
    encoder.taps.push_back(resolve_tap(config, layer, encoder.spec.layers));
  const std::string select = config.text("vision_feature_select_strategy", "default");
  if (select != "default" && select != "full")
    config.refuse("vision_feature_select_strategy", select, "default, full");
  encoder.spec.drops_first_token = select == "default";
  encoder.spec.name = "vision";
  return encoder;
}

/// The placeholder of a modality: an id that is not the other's.
int64_t read_token(const ConfigReader& config, const char* key, int64_t fallback, int64_t other) {
  const int64_t token = config.integer(key, fallback);
  if (token < 0) config.refuse(key, std::to_string(token), "0 or more");
  if (token == other)
    config.refuse(key, std::to_string(token), "another id than that of image_token_index");
  return token;
}

/// The encoder and its projector to rows of `hidden`. Returns the unit that makes the features.
int add_vision(SpecBuilder& builder, const VisionEncoder& encoder, int64_t hidden,
               const Trainable& trainable) {
  const EncoderSpec& vision = encoder.spec;
  const auto [trains, projector_trains] = trainable.of(vision.name);
  const std::vector<int> states = add_vision_encoder(builder, encoder, kTower, trains);
  std::vector<UnitInput> taps;
  for (int64_t tap : encoder.taps) taps.push_back({states[tap], false});
  const int64_t width = vision.block.hidden * static_cast<int64_t>(taps.size());
  builder.start(vision.name + ".projector", vision.name, UnitKind::Projector, std::move(taps));
  add_projector_linears(builder, vision.projector, "multi_modal_projector.", width, hidden,
                        projector_trains);
  const int features = builder.last_unit();
  add_carried(builder, encoder, kTower);
  return features;
}

}  // namespace

void add_projector_linears(SpecBuilder& builder, const ProjectorSpec& projector,
                           const std::string& root, int64_t width, int64_t hidden, bool trainable) {
  const auto linear = [&](const std::string& name, int64_t in, const TpCut& cut) {
    builder.add(name + ".weight", root + name + ".weight", {hidden, in}, trainable, 0.02, cut);
    if (projector.bias)
      builder.add(name + ".bias", root + name + ".bias", {hidden}, trainable, 0,
                  cut.dim == 0 ? cut : TpCut{});
  };
  linear("linear_1", width, cut_outputs(hidden));
  linear("linear_2", hidden, cut_inputs(hidden));
}

ModelSpec make_llava(const ConfigReader& config, const Trainable& trainable) {
  config.pass_over({"ignore_index", "image_seq_length", "vocab_size"});
  ModelSpec model;
  Decoder decoder = read_decoder(config.object("text_config"));
  if (config.boolean("tie_word_embeddings", false)) decoder.spec.tied_embeddings = true;
  model.decoder = decoder.spec;
  const int64_t hidden = decoder.spec.block.hidden;
  const ProjectorSpec projector{.activation = config.activation("projector_hidden_act", "gelu"),
                                .bias = config.boolean("multimodal_projector_bias", true)};
  SpecBuilder builder(model);
  std::vector<int> features;
  int64_t image_token = -1;
  const bool has_audio = config.has("audio_config");
  if (config.has("vision_config") || !has_audio) {
    VisionEncoder encoder = read_vision(config);
    image_token =
        read_token(config, "image_token_index", config.integer("image_token_id", 32000), -1);
    encoder.spec.placeholder = image_token;
    encoder.spec.projector = projector;
    model.encoders.push_back(encoder.spec);
    features.push_back(add_vision(builder, encoder, hidden, trainable));
  } else {
    config.pass_over({"image_token_id", "image_token_index", "vision_feature_layer",
                      "vision_feature_select_strategy"});
  }
  if (has_audio) {
    EncoderSpec audio = read_part(kAudioEncoders, config.object("audio_config"), "whisper");
    audio.name = "audio";
    audio.placeholder =
        read_token(config, "audio_token_index", config.integer("audio_token_id", -1), image_token);
    audio.projector = projector;
    model.encoders.push_back(audio);
    add_audio_encoder(builder, audio, hidden, trainable);
    features.push_back(builder.last_unit());
  }
  add_decoder(builder, decoder, "language_model.", features, trainable.llm);
  drop_unread_units(model);
  return model;
}

}  // namespace zea::detail
