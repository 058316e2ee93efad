// SPDX-License-Identifier: Apache-2.0
// Gemma 4 with images, videos and audio. The frames of a video are images with text between them;
// gemma4_audio_spec.cpp has the audio encoder. The image encoder is a vision transformer for images
// of any size. The position of a patch is the sum of a learned row and a learned column position,
// with axial RoPE in attention. The encoder's outputs are averaged over
// squares of patches, standardized, normed and projected to the text's width. Files leave out
// values that equal the defaults of transformers' configs.
#include <cmath>

#include "spec/gemma4_audio.hpp"

namespace zea::detail {

Decoder read_gemma4(const ConfigReader&);

namespace {

const std::string kGemma4Tower = "model.vision_tower.";
constexpr const char* kTextOfBoth = "use_bidirectional_attention";

/// Axial RoPE: the first half of a head rotates by the column, the second by the row, at the same
/// frequencies.
AttentionSpec read_axial_attention(const ConfigReader& config) {
  AttentionSpec attention{.scores = {.scale = 1}, .norms_values = true};
  HeadShape& heads = attention.heads;
  heads = {.query = config.positive("num_attention_heads", 12),
           .key_value = config.positive("num_key_value_heads", 12),
           .dim = config.positive("head_dim", 64)};
  config.require_divisor("num_key_value_heads", heads.key_value, "num_attention_heads",
                         heads.query);
  if (heads.dim % 4 != 0) config.refuse("head_dim", std::to_string(heads.dim), "a multiple of 4");
  std::vector<RotaryPair> turns;
  for (const int64_t axis : {2, 1})
    for (int64_t i = 0; i < heads.dim / 4; ++i) turns.push_back({axis, 2 * i});
  attention.rope = read_axial_rope(config, std::move(turns), 100);
  attention.rope.parts = 2;
  return attention;
}

PatchInput read_summed_patches(const ConfigReader& config) {
  // Gemma4ImageProcessor and Gemma4VideoProcessor call features soft tokens.
  constexpr int64_t kFeatures = 280, kFeaturesOfFrame = 70, kFrames = 32;
  constexpr int64_t kLargest = 1024;
  PatchInput patches{.patch_size = config.positive("patch_size", 16),
                     .block = config.positive("pooling_kernel_size", 3),
                     .tiling = ImagesFilling{.shrinks_sides = true},
                     .by_pixel = true,
                     .table_side = config.positive("position_embedding_size", 10240),
                     .table_fit = TableFit::Sum,
                     .colours = {.mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5}},
                     .doubles_pixels = true};
  const int64_t step = patches.patch_size * patches.block;
  if (patches.patch_size > kLargest || patches.block > kLargest || step > kLargest)
    config.refuse("patch_size", std::to_string(patches.patch_size),
                  "at most " + std::to_string(kLargest) + " / pooling_kernel_size");
  patches.limit({.most = kFeatures * step * step});
  patches.video = VideoInput{.pixels = {.most = kFeaturesOfFrame * step * step},
                             .most_frames = kFrames,
                             .has_text_between = true};
  return patches;
}

VisionEncoder read_gemma4_vision(const ConfigReader& config) {
  config.require_text("model_type", "gemma4_vision");
  config.require_no_dropout({"attention_dropout"});
  // transformers reads none of these keys.
  config.ignore_keys(
      {"attention_bias", "default_output_length", "global_head_dim", "max_position_embeddings"});
  VisionEncoder encoder;
  EncoderSpec& vision = encoder.spec;
  BlockSpec& block = vision.block;
  const double std = config.number("initializer_range", 0.02);
  block.hidden = config.positive("hidden_size", 768);
  block.norm = {NormKind::Rms, config.number("rms_norm_eps", 1e-6)};
  block.rotary = true;
  block.clips_linears = config.boolean("use_clipped_linears", false);
  block.attention() = read_axial_attention(config);
  MlpSpec& mlp = block.mlp();
  mlp.intermediate = config.positive("intermediate_size", 3072);
  mlp.gated = true;
  const char* key = "hidden_activation";
  mlp.activation = config.activation(key, "gelu_pytorch_tanh");
  if (mlp.activation == Activation::QuickGelu || mlp.activation == Activation::Relu)
    config.refuse(key, config.text(key, ""),
                  "silu, gelu, gelu_pytorch_tanh (other gates are not built yet)");
  vision.layers = config.positive("num_hidden_layers", 16);
  vision.input = read_summed_patches(config);
  vision.name = "vision";
  vision.drops_first_token = false;
  vision.projector = {.norm = block.norm,
                      .merge = vision.patches().block * vision.patches().block,
                      .pools = true,
                      .pools_first = true,
                      .mean_scale = std::sqrt(static_cast<double>(block.hidden)),
                      .has_bare_norm = true,
                      .is_linear = true};
  encoder.blocks = {.names = {.attention_norm = ".input_layernorm",
                              .q = ".self_attn.q_proj.linear",
                              .k = ".self_attn.k_proj.linear",
                              .v = ".self_attn.v_proj.linear",
                              .q_norm = ".self_attn.q_norm",
                              .k_norm = ".self_attn.k_norm",
                              .out = ".self_attn.o_proj.linear",
                              .attention_post_norm = ".post_attention_layernorm",
                              .mlp_norm = ".pre_feedforward_layernorm",
                              .gate = ".mlp.gate_proj.linear",
                              .up = ".mlp.up_proj.linear",
                              .down = ".mlp.down_proj.linear",
                              .mlp_post_norm = ".post_feedforward_layernorm"},
                    .biases = {},
                    .init = {std, std, std, std}};
  encoder.names = {.class_token = {},
                   .patch = "patch_embedder.input_proj",
                   .positions = "patch_embedder.position_embedding_table",
                   .pre_norm = {},
                   .layers = "encoder.layers."};
  encoder.patch_std = encoder.position_std = std;
  return encoder;
}

/// Adds the projector. `standardizes`: files hold a shift and a scale of its averaged inputs, which
/// never train.
void add_embedder(SpecBuilder& builder, const VisionEncoder& encoder, bool standardizes,
                  int64_t hidden, const Trainable::Encoder& trains) {
  const EncoderSpec& vision = encoder.spec;
  const int64_t width = vision.block.hidden;
  builder.start(vision.name + ".projector", vision.name, UnitKind::Projector,
                {{builder.last_unit(), false}});
  if (standardizes) {
    builder.add("encoder_norm_shift", kGemma4Tower + "std_bias", {width}, false, 0);
    builder.add_ones("encoder_norm_scale", kGemma4Tower + "std_scale", {width});
  }
  add_projector_linear(builder, "linear", "model.embed_vision.embedding_projection",
                       {hidden, width}, false, trains.projector);
}

Decoder read_text(const ConfigReader& config, const ConfigReader& text) {
  text.require_text("model_type", "gemma4_text");
  Decoder decoder = read_gemma4(text);
  decoder.names.root = "model.language_model.";
  decoder.spec.tied_embeddings = config.boolean("tie_word_embeddings", true);
  if (config.has("eos_token_id")) decoder.spec.end_tokens = config.integers("eos_token_id", 1);
  return decoder;
}

/// Adds the image encoder to `model`. Returns the unit that makes the features.
int add_images(SpecBuilder& builder, const ConfigReader& config, ModelSpec& model,
               const Trainable& trainable) {
  const ConfigReader of_vision = config.object("vision_config");
  VisionEncoder encoder = read_gemma4_vision(of_vision);
  encoder.spec.placeholder = config.integer("image_token_id", 258880);
  encoder.spec.video_placeholder = config.integer("video_token_id", 258884);
  if (config.object("text_config").text(kTextOfBoth, "") == "vision")
    model.decoder.bidirectional_images = BidirectionalLayers::InWindows;
  const Trainable::Encoder trains = trainable.of(encoder.spec.name);
  model.encoders.push_back(encoder.spec);
  add_vision_encoder(builder, encoder, kGemma4Tower, trains.encoder);
  add_embedder(builder, encoder, of_vision.boolean("standardize", false),
               model.decoder.block.hidden, trains);
  return builder.last_unit();
}

int add_sound(SpecBuilder& builder, const ConfigReader& config, ModelSpec& model,
              const Trainable& trainable) {
  constexpr const char* kToken = "audio_token_id";
  Gemma4Audio audio = read_gemma4_audio(config.object("audio_config"));
  audio.spec.placeholder = config.integer(kToken, 258881);
  if (audio.spec.placeholder < 0 || model.is_placeholder(audio.spec.placeholder))
    config.refuse(kToken, std::to_string(audio.spec.placeholder),
                  "an id of 0 or more that is not that of images or videos");
  model.encoders.push_back(audio.spec);
  return add_gemma4_audio(builder, audio, model.decoder.block.hidden,
                          trainable.of(audio.spec.name));
}

}  // namespace

ModelSpec make_gemma4(const ConfigReader& config, const Trainable& trainable) {
  // Tokens around images and clips are ordinary text; vision_soft_tokens_per_image is not needed.
  config.ignore_keys({"audio_config", "audio_token_id", "boa_token_id", "boi_token_id",
                      "eoa_token_id", "eoa_token_index", "eoi_token_id", "image_token_id",
                      "video_token_id", "vision_config", "vision_soft_tokens_per_image"});
  const Decoder decoder = read_text(config, config.object("text_config"));
  ModelSpec model;
  model.decoder = decoder.spec;
  SpecBuilder builder(model);
  std::vector<int> features;
  if (config.has("vision_config"))
    features.push_back(add_images(builder, config, model, trainable));
  if (config.has("audio_config")) features.push_back(add_sound(builder, config, model, trainable));
  add_decoder(builder, decoder, "", features, trainable.llm);
  return model;
}

}  // namespace zea::detail
