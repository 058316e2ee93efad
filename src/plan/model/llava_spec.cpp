// SPDX-License-Identifier: Apache-2.0
// LLaVA (arXiv:2310.03744): a CLIP vision transformer (arXiv:2103.00020), a projector, and a Llama
// decoder into whose text the features are merged. With an "audio_config" beside the vision
// encoder's, or in its place, the model hears, too; transformers passes over that key.
#include <cmath>

#include "families.hpp"

namespace zea::detail {
namespace {

void add_vision_block(SpecBuilder& builder, const VisionConfig& vision, const std::string& layer,
                      bool trainable) {
  // CLIP's own initialisation (transformers CLIPPreTrainedModel._init_weights).
  const double width = static_cast<double>(vision.hidden);
  const double depth = 1 / std::sqrt(2.0 * vision.layers);
  const double in_std = depth / std::sqrt(width), out_std = 1 / std::sqrt(width);
  builder.add_norm(layer + ".layer_norm1", vision.hidden, trainable, true);
  const Shape square{vision.hidden, vision.hidden};
  const TpCut heads = cut_outputs(vision.heads), inner = cut_outputs(vision.intermediate);
  for (const char* part : {"q_proj", "k_proj", "v_proj"})
    builder.add(layer + ".self_attn." + part + ".weight", square, trainable, in_std, heads,
                part[0] != 'v');
  for (const char* part : {"q_proj", "k_proj", "v_proj"})
    builder.add(layer + ".self_attn." + part + ".bias", {vision.hidden}, trainable, 0, heads,
                part[0] != 'v');
  builder.add(layer + ".self_attn.out_proj.weight", square, trainable, out_std,
              cut_inputs(vision.heads));
  builder.add(layer + ".self_attn.out_proj.bias", {vision.hidden}, trainable, 0);
  builder.add_norm(layer + ".layer_norm2", vision.hidden, trainable, true);
  builder.add(layer + ".mlp.fc1.weight", {vision.intermediate, vision.hidden}, trainable,
              1 / std::sqrt(2 * width), inner);
  builder.add(layer + ".mlp.fc1.bias", {vision.intermediate}, trainable, 0, inner);
  builder.add(layer + ".mlp.fc2.weight", {vision.hidden, vision.intermediate}, trainable, in_std,
              cut_inputs(vision.intermediate));
  builder.add(layer + ".mlp.fc2.bias", {vision.hidden}, trainable, 0);
}

/// Returns the unit that makes hidden state `state` for each state 0..layers.
std::vector<int> add_vision_encoder(SpecBuilder& builder, const VisionConfig& vision,
                                    bool trainable) {
  const std::string root = "vision_tower.";
  builder.start("vision.embed", "vision", UnitKind::PatchEmbed, {});
  const double std = 1 / std::sqrt(static_cast<double>(vision.hidden));
  builder.add_class_token(root + "embeddings.class_embedding", vision.hidden, trainable, std);
  builder.add(root + "embeddings.patch_embedding.weight",
              {vision.hidden, vision.channels, vision.patch_size, vision.patch_size}, trainable,
              0.02);
  builder.add(root + "embeddings.position_embedding.weight", {vision.tokens(), vision.hidden},
              trainable, 0.02);
  builder.add_norm(root + "pre_layrnorm", vision.hidden, trainable, true);
  std::vector<int> states{builder.last_unit()};
  for (int64_t layer = 0; layer < vision.layers; ++layer) {
    builder.start("vision.layers." + std::to_string(layer), "vision", UnitKind::VisionBlock,
                  {{states.back(), false}});
    add_vision_block(builder, vision, root + "encoder.layers." + std::to_string(layer), trainable);
    states.push_back(builder.last_unit());
  }
  return states;
}

void add_projector(SpecBuilder& builder, const ModelSpec& model, const std::vector<int>& states,
                   bool trainable) {
  std::vector<UnitInput> taps;
  for (int64_t tap : model.vision->taps) taps.push_back({states[tap], false});
  const int64_t width = model.vision->hidden * static_cast<int64_t>(taps.size());
  builder.start("vision.projector", "vision", UnitKind::Projector, std::move(taps));
  add_projector_linears(builder, model, "multi_modal_projector.", width, trainable);
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

VisionConfig read_vision(const ConfigReader& config) {
  VisionConfig vision = read_vision_config(config.object("vision_config"));
  for (int64_t layer : config.integers("vision_feature_layer", -2))
    vision.taps.push_back(resolve_tap(config, layer, vision.layers));
  const std::string select = config.text("vision_feature_select_strategy", "default");
  if (select != "default" && select != "full")
    config.refuse("vision_feature_select_strategy", select, "default, full");
  vision.keep_class_token = select == "full";
  return vision;
}

/// The placeholder of a modality: an id that is not the other's.
int64_t read_token(const ConfigReader& config, const char* key, int64_t fallback, int64_t other) {
  const int64_t token = config.integer(key, fallback);
  if (token < 0) config.refuse(key, std::to_string(token), "0 or more");
  if (token == other)
    config.refuse(key, std::to_string(token), "another id than that of image_token_index");
  return token;
}

/// Returns the unit that makes the features.
int add_vision(SpecBuilder& builder, const ModelSpec& model, const Trainable& trainable) {
  const std::vector<int> states =
      add_vision_encoder(builder, *model.vision, trainable.of("vision").encoder);
  add_projector(builder, model, states, trainable.of("vision").projector);
  const int features = builder.last_unit();
  // Carried: Llava reads hidden states before the encoder's last norm.
  builder.start("vision.post_norm", "vision", UnitKind::VisionBlock, {});
  builder.add_norm("vision_tower.post_layernorm", model.vision->hidden, false, true);
  return features;
}

}  // namespace

void add_projector_linears(SpecBuilder& builder, const ModelSpec& model, const std::string& root,
                           int64_t width, bool trainable) {
  const int64_t hidden = model.text.hidden;
  builder.add(root + "linear_1.weight", {hidden, width}, trainable, 0.02, cut_outputs(hidden));
  if (model.projector.bias)
    builder.add(root + "linear_1.bias", {hidden}, trainable, 0, cut_outputs(hidden));
  builder.add(root + "linear_2.weight", {hidden, hidden}, trainable, 0.02, cut_inputs(hidden));
  if (model.projector.bias) builder.add(root + "linear_2.bias", {hidden}, trainable, 0);
}

ModelSpec make_llava(const ConfigReader& config, const Trainable& trainable) {
  ModelSpec model;
  model.text =
      read_text_config(config.object("text_config"), config.boolean("tie_word_embeddings", false));
  const bool hears = config.has("audio_config");
  if (!hears || config.has("vision_config")) {
    model.vision = read_vision(config);
    model.image_token =
        read_token(config, "image_token_index", config.integer("image_token_id", 32000), -1);
  }
  if (hears) {
    model.audio = read_audio_config(config.object("audio_config"));
    model.audio_token = read_token(config, "audio_token_index",
                                   config.integer("audio_token_id", -1), model.image_token);
  }
  model.projector.activation = config.activation("projector_hidden_act", "gelu");
  model.projector.bias = config.boolean("multimodal_projector_bias", true);

  SpecBuilder builder(model);
  std::vector<int> features;
  if (model.vision) features.push_back(add_vision(builder, model, trainable));
  if (model.audio) {
    add_audio_encoder(builder, model, trainable);
    features.push_back(builder.last_unit());
  }
  add_llama_decoder(builder, model.text, "language_model.", features, trainable.llm);
  drop_unread_units(model);
  return model;
}

}  // namespace zea::detail
