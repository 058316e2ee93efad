// SPDX-License-Identifier: Apache-2.0
// Encoders that configs of LLaVA describe, each with a projector to the language model.
#include "spec/families.hpp"

namespace zea {
namespace detail {
namespace {

constexpr const char* kPatches = "patches";  ///< of composed models: patches alone become features

/// Reads the placeholder of an encoder, which must differ from those of others.
int64_t read_token(const ConfigReader& config, const char* key, int64_t fallback,
                   const ModelSpec& model) {
  const int64_t token = config.integer(key, fallback);
  if (token < 0) config.refuse(key, std::to_string(token), "0 or more");
  for (const EncoderSpec& encoder : model.encoders)
    if (encoder.placeholder == token)
      config.refuse(key, std::to_string(token), "another id than that of " + encoder.name);
  return token;
}

/// Lets 2 x 2 patches become one feature.
void merge_squares(const ConfigReader& config, const std::string& kind, EncoderSpec& encoder) {
  constexpr int64_t kSide = 2;
  auto* patches = std::get_if<PatchInput>(&encoder.input);
  const auto refuse = [&](const std::string& found) {
    config.refuse(
        "projector", kind,
        "linear, mlp (2 x 2 patches become one feature, and this encoder has " + found + ")");
  };
  if (!patches) refuse("no patches");
  if (patches->side() % kSide != 0 && !patches->any_size())
    refuse(std::to_string(patches->side()) + " patches a side");
  patches->block = kSide;
  // Learned tokens follow the patches, so that all layouts keep squares whole.
  patches->patches_first = patches->learned_tokens() > 0;
  encoder.drops_first_token = encoder.drops_registers = false;
  if (const auto* filling = patches->as<ImagesFilling>()) patches->limit(filling->pixels);
  encoder.projector.merge = kSide * kSide;
}

/// Reads the projector; configs of LLaVA do not name theirs, an mlp.
void read_projector(const ConfigReader& config, EncoderSpec& encoder, bool has_bias = true) {
  const std::string kind = config.text("projector", "mlp");
  ProjectorSpec& projector = encoder.projector;
  projector.activation = config.activation("projector_hidden_act", "gelu");
  projector.bias = config.boolean("multimodal_projector_bias", has_bias);
  projector.pools = kind == "pool";
  projector.is_linear = kind == "linear" || projector.pools;
  if (kind == "pixel_shuffle_mlp" || projector.pools)
    merge_squares(config, kind, encoder);
  else if (kind != "linear" && kind != "mlp")
    config.refuse("projector", kind, "linear, mlp, pixel_shuffle_mlp, pool");
}

/// Reads a key of zea's own: whether features go through the encoder's final norm.
void read_final_norm(const ConfigReader& config, VisionEncoder& encoder) {
  encoder.norms_features = config.boolean("vision_feature_norm", false);
  if (!encoder.norms_features) return;
  const bool is_last = encoder.taps == std::vector<int64_t>{encoder.spec.layers};
  if (encoder.names.final_norm.empty() || !is_last)
    config.refuse("vision_feature_norm", "true",
                  encoder.names.final_norm.empty() ? "false: the encoder has no norm of all tokens"
                                                   : "false, or true for the last layer alone");
}

/// Reads the patch merger: squares of patches become one of the encoder's width after a norm.
void read_patch_merger(const ConfigReader& config, const DecoderSpec& text,
                       VisionEncoder& encoder) {
  if (encoder.taps.size() != 1)
    config.refuse("vision_feature_layer", std::to_string(encoder.taps.size()) + " layers",
                  "one (the norm before the merger is as wide as a layer, so transformers "
                  "cannot run such a model, either)");
  constexpr int64_t kMostSide = 16;
  PatchInput& patches = encoder.spec.patches();
  patches.block = config.positive("spatial_merge_size", 2);
  if (patches.block > kMostSide)
    config.refuse("spatial_merge_size", std::to_string(patches.block),
                  "1 to " + std::to_string(kMostSide));
  ProjectorSpec& projector = encoder.spec.projector;
  projector.merge = patches.block * patches.block;
  projector.space_to_depth = true;
  projector.norm = {NormKind::Rms, text.block.norm.eps};
}

void add_patch_merger(SpecBuilder& builder, const EncoderSpec& vision, const std::string& root,
                      bool trainable) {
  const int64_t hidden = vision.block.hidden;
  builder.add_norm("norm", root + "norm", vision.projector.norm, hidden, trainable);
  add_projector_linear(builder, "merger", root + "patch_merger.merging_layer",
                       {hidden, hidden * vision.projector.merge}, false, trainable);
}

/// Reads the resolutions of FittedTiles, each of whole tiles.
void read_resolutions(const ConfigReader& config, const std::vector<ImageSize>& usual,
                      EncoderSpec& vision) {
  PatchInput& patches = vision.patches();
  constexpr int64_t kMostTiles = 64;
  const int64_t size = patches.image_size;
  std::vector<ImageSize> resolutions = usual;
  if (config.has("image_grid_pinpoints")) resolutions = config.sizes("image_grid_pinpoints");
  for (const auto& [height, width] : resolutions)
    if (height % size != 0 || width % size != 0 || height / size * (width / size) > kMostTiles)
      config.refuse("image_grid_pinpoints",
                    "[" + std::to_string(height) + ", " + std::to_string(width) + "]",
                    "whole tiles of the encoder's image_size = " + std::to_string(size) + ", " +
                        std::to_string(kMostTiles) + " of them at most");
  if (patches.any_size() || patches.registers > 0)
    config.refuse("vision_config.model_type", config.object("vision_config").text("model_type", ""),
                  "an encoder of one size of images and without registers, as clip_vision_model "
                  "(others are not built yet)");
  if (vision.drops_first_token != patches.class_token)
    config.refuse("vision_feature_select_strategy", patches.class_token ? "full" : "default",
                  patches.class_token ? "default: the patches of each tile"
                                      : "full: this encoder's features are its patches");
  patches.tiling = FittedTiles{.resolutions = std::move(resolutions)};
}

VisionEncoder read_vision(const ConfigReader& config, const ImageDefaults& defaults) {
  VisionEncoder encoder =
      read_part(vision_encoders(), config.object("vision_config"), defaults.encoder);
  if (encoder.spec.patches().as<ImagesFilling>() && !defaults.gives_shapes)
    config.refuse("vision_config.model_type", config.object("vision_config").text("model_type", ""),
                  "an encoder that transformers' composites run, which this is in none; put it "
                  "together with a language model by a deck (weights of an encoder's section)");
  for (int64_t layer : config.integers("vision_feature_layer", defaults.layer))
    encoder.taps.push_back(resolve_feature_layer(config, layer, encoder.spec.layers));
  const std::string select = config.text("vision_feature_select_strategy", defaults.select);
  if (encoder.spec.varies() && select != "full")
    config.refuse("vision_feature_select_strategy", select,
                  "full (images of any size begin with no token to drop)");
  if (select != "default" && select != "full" && select != kPatches)
    config.refuse("vision_feature_select_strategy", select, "default, full");
  encoder.spec.drops_first_token = select != "full";
  encoder.spec.drops_registers = select == kPatches;
  read_final_norm(config, encoder);
  return encoder;
}

}  // namespace

int64_t resolve_feature_layer(const ConfigReader& config, int64_t layer, int64_t layers) {
  const int64_t state = layer < 0 ? layers + 1 + layer : layer;
  if (state < 0 || state > layers)
    config.refuse("vision_feature_layer", std::to_string(layer),
                  std::to_string(-layers - 1) + " to " + std::to_string(layers));
  return state;
}

}  // namespace detail

bool is_audio_family(const std::string& family) {
  return detail::audio_encoders().contains(family);
}

ImageEncoderFacts image_encoder_facts(const std::string& config_json, const std::string& path) {
  const auto config = nlohmann::json::parse(config_json);
  const detail::VisionEncoder encoder =
      detail::read_part(detail::vision_encoders(), detail::ConfigReader(config, path),
                        detail::ImageDefaults{}.encoder);
  const PatchInput& input = encoder.spec.patches();
  const auto is_pooler = [](const auto& param) { return param.name == "pooler.dense.weight"; };
  return {!input.class_token    ? "full"
          : input.registers > 0 ? detail::kPatches
                                : "default",
          std::ranges::any_of(encoder.carried, is_pooler)};
}

namespace detail {

void add_projector_linear(SpecBuilder& builder, const std::string& role, const std::string& name,
                          const Shape& shape, bool bias, bool trainable) {
  TpSharding cut;
  if (role == "linear_1") cut = column_parallel(shape[0]);
  if (role == "linear_2") cut = row_parallel(shape[1]);
  builder.add(role + ".weight", name + ".weight", shape, trainable, 0.02, cut);
  if (bias)
    builder.add(role + ".bias", name + ".bias", {shape[0]}, trainable, 0,
                cut.dim == 0 ? cut : TpSharding{});
}

void add_projector_linears(SpecBuilder& builder, const ProjectorSpec& projector,
                           const std::string& root, int64_t width, int64_t hidden, bool trainable) {
  const auto linear = [&](const std::string& name, int64_t in) {
    add_projector_linear(builder, name, root + name, {hidden, in}, projector.bias, trainable);
  };
  if (projector.is_linear) return linear("linear", width);
  linear("linear_1", width);
  linear("linear_2", hidden);
}

int add_image_encoder(SpecBuilder& builder, ModelSpec& model, const ConfigReader& config,
                      const EncoderNames& names, const Trainable& trainable,
                      const ImageDefaults& defaults) {
  VisionEncoder encoder = read_vision(config, defaults);
  EncoderSpec& vision = encoder.spec;
  vision.name = names.name;
  vision.placeholder = read_token(config, "image_token_index",
                                  config.integer("image_token_id", defaults.token), model);
  read_projector(config, vision, defaults.bias);
  if (defaults.merges) read_patch_merger(config, model.decoder, encoder);
  if (!names.row_end.empty()) read_resolutions(config, defaults.resolutions, vision);
  model.encoders.push_back(vision);
  const auto [trains, projector_trains] = trainable.of(vision.name);
  const std::vector<int> states = add_vision_encoder(builder, encoder, names.root, trains);
  std::vector<UnitInput> taps;
  for (int64_t tap : encoder.taps) taps.push_back({states[tap], false});
  const bool is_wide = !vision.projector.pools && !defaults.merges;
  const int64_t side_by_side = is_wide ? vision.projector.merge : 1;
  const int64_t width = vision.block.hidden * static_cast<int64_t>(taps.size()) * side_by_side;
  builder.start(vision.name + ".projector", vision.name, UnitKind::Projector, std::move(taps));
  if (encoder.norms_features)
    builder.add_norm("encoder_norm", names.root + encoder.names.final_norm, vision.block.norm,
                     vision.block.hidden, trains);
  if (defaults.merges) add_patch_merger(builder, vision, names.projector_root, projector_trains);
  add_projector_linears(builder, vision.projector, names.projector_root, width,
                        model.decoder.block.hidden, projector_trains);
  if (!names.row_end.empty())
    builder.add_normal_vector("row_end", names.row_end, model.decoder.block.hidden,
                              projector_trains);
  const int features = builder.last_unit();
  add_carried(builder, encoder, names.root);
  return features;
}

int add_sound_encoder(SpecBuilder& builder, ModelSpec& model, const ConfigReader& config,
                      const EncoderNames& names, const Trainable& trainable) {
  EncoderSpec audio = read_part(audio_encoders(), config.object("audio_config"), "whisper");
  audio.name = names.name;
  audio.placeholder =
      read_token(config, "audio_token_index", config.integer("audio_token_id", -1), model);
  read_projector(config, audio);
  model.encoders.push_back(audio);
  add_audio_encoder(builder, audio, names, model.decoder.block.hidden, trainable);
  return builder.last_unit();
}

}  // namespace detail
}  // namespace zea
