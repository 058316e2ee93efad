// SPDX-License-Identifier: Apache-2.0
// GLM-4.1V, GLM-4.5V (arXiv:2507.01006) and GLM-4.6V: a decoder with M-RoPE, and an encoder of
// images of any size. Patches are normed, a table of positions is interpolated to each image by
// cubic convolution, and blocks have RMSNorms, axial RoPE and gated MLPs. A convolution merges 2 x
// 2 patches into one feature; a linear and a gated MLP follow. The decoder is GLM-4.5's, or a dense
// one with norms before and after each half of a block.
#include "spec/qwen_vl.hpp"

namespace zea::detail {
namespace {

const std::string kGlmRoot = "model.visual.";
constexpr double kMergerEps = 1e-5;  ///< of the merger's LayerNorm; no key of the config sets it
constexpr int64_t kGlmWidth = 4096;  ///< of features, if the config has no out_hidden_size
/// Limits in pixels of one frame of an image, which the processor counts as two equal frames, and
/// of all frames of a video.
constexpr QwenVisionDefaults kGlmTower{
    .layers = 24,
    .patch = 14,
    .pixels = {.least = int64_t{56} * 112, .most = int64_t{14} * 28 * 15000},
    .frame_pixels = {.least = int64_t{112} * 112, .most = int64_t{28} * 28 * 60000}};

VisionEncoder read_glm_tower(const ConfigReader& config) {
  config.require_text("hidden_act", "silu");
  config.require_no_dropout({"attention_dropout", "hidden_dropout_prob"});
  const bool biases = config.boolean("attention_bias", false);
  BlockSpec block;
  block.hidden = config.positive("hidden_size", 1536);
  block.mlp().intermediate = config.positive("out_hidden_size", kGlmWidth);
  block.mlp().gated = true;
  block.mlp().activation = Activation::Silu;
  block.norm.kind = NormKind::Rms;
  VisionEncoder encoder = read_qwen_vision_tower(config, block, "hidden_size", kGlmTower);
  EncoderSpec& vision = encoder.spec;
  vision.block.norm.eps = config.number("rms_norm_eps", 1e-5);
  PatchInput& patches = vision.patches();
  patches.video->limits_all = true;
  patches.video->has_text_between = true;
  patches.as<ImagesWithin>()->counts_frames = true;
  const int64_t side = config.side("image_size", 336);
  patches.table_side = side / patches.patch_size;
  patches.table_fit = TableFit::Cubic;
  if (patches.table_side < 1)
    config.refuse("image_size", std::to_string(side),
                  "patch_size = " + std::to_string(patches.patch_size) + " or more");
  vision.projector = {.norm = {NormKind::Layer, kMergerEps},
                      .merge = patches.block * patches.block,
                      .space_to_depth = true,
                      .activation = Activation::Silu};
  BlockNames& names = encoder.blocks.names;
  names.gate = ".mlp.gate_proj";
  names.up = ".mlp.up_proj";
  names.down = ".mlp.down_proj";
  encoder.blocks.biases = {.q = biases, .k = biases, .v = biases};
  encoder.names.positions = "embeddings.position_embedding.weight";
  encoder.names.patch_norm = "post_conv_layernorm";
  encoder.names.final_norm = "post_layernorm";
  encoder.norms_features = encoder.patch_bias = true;
  encoder.position_std = encoder.patch_std;
  return encoder;
}

/// Adds the merger's unit, which also has the encoder's final norm.
std::vector<int> add_glm_merger(SpecBuilder& builder, const VisionEncoder& encoder, int state,
                                int64_t width, int64_t inner, const Trainable& trainable) {
  const EncoderSpec& vision = encoder.spec;
  const Trainable::Encoder trains = trainable.of(vision.name);
  const int64_t side = vision.patches().block;
  const std::string merger = kGlmRoot + "merger.";
  builder.start("vision.projector", "vision", UnitKind::Projector, {{state, false}});
  builder.add_norm("encoder_norm", kGlmRoot + encoder.names.final_norm, vision.block.norm,
                   vision.block.hidden, trains.encoder);
  builder.add("downsample.weight", kGlmRoot + "downsample.weight",
              {width, vision.block.hidden, side, side}, trains.projector, encoder.patch_std);
  builder.add("downsample.bias", kGlmRoot + "downsample.bias", {width}, trains.projector, 0);
  add_projector_linear(builder, "merger", merger + "proj", {width, width}, false, trains.projector);
  builder.add_norm("projected_norm", merger + "post_projection_norm", vision.projector.norm, width,
                   trains.projector);
  const TpSharding cut = column_parallel(inner);
  builder.add_fused("linear_1.weight",
                    {{merger + "gate_proj.weight", {inner, width}, cut},
                     {merger + "up_proj.weight", {inner, width}, cut}},
                    trains.projector, encoder.patch_std);
  add_projector_linear(builder, "linear_2", merger + "down_proj", {width, inner}, false,
                       trains.projector);
  return {builder.last_unit()};
}

/// Reads the text of GLM-4.5V.
Decoder read_sparse_glm_text(const ConfigReader& config) {
  // As in transformers, a config with encoders does not turn on router losses; a deck may.
  config.ignore_keys({"output_router_logits", "router_aux_loss_coef"});
  config.require_boolean("use_qk_norm", false);
  return read_glm_text(
      config, {.vocabulary = 151424, .positions = 65536, .has_biases = true, .has_mrope = true});
}

/// Reads the text of GLM-4.1V, whose files have gate and up in one matrix.
Decoder read_dense_glm_text(const ConfigReader& config) {
  config.require_boolean("attention_bias", true);
  Decoder decoder = read_llama_like(config,
                                    {.intermediate = 13696,
                                     .layers = 40,
                                     .key_value_heads = 2,
                                     .vocabulary = 151552,
                                     .positions = 32768,
                                     .end_token = -1,
                                     .eps = 1e-5,
                                     .has_mrope = true,
                                     .rotates_all = false},
                                    {.q = true, .k = true, .v = true});
  AttentionSpec& attention = decoder.spec.block.attention();
  const HeadShape& heads = attention.heads;
  if (heads.query * heads.dim != decoder.spec.block.hidden)
    config.refuse("head_dim", std::to_string(heads.dim),
                  "hidden_size / num_attention_heads in this family, without a remainder");
  attention.rope.of_neighbors = true;
  BlockNames& names = decoder.blocks.names;
  names.attention_post_norm = ".post_self_attn_layernorm";
  names.mlp_post_norm = ".post_mlp_layernorm";
  names.gate = names.up = ".mlp.gate_up_proj";
  return decoder;
}

ModelSpec make_with_glm_tower(const ConfigReader& config, Decoder decoder, int64_t image_token,
                              const Trainable& trainable) {
  const ConfigReader text = text_of(config), of_vision = config.object("vision_config");
  // Tokens around images and videos are ordinary text. So is the token of a video, since features
  // of its frames take the places of the image's.
  for (const ConfigReader* one : {&config, &text})
    one->ignore_keys({"image_start_token_id", "image_end_token_id", "video_start_token_id",
                      "video_end_token_id", "video_token_id"});
  text.ignore_keys({"image_token_id"});
  decoder.names.root = "model.language_model.";
  decoder.spec.tied_embeddings = ties_head(config, decoder, false);
  AttentionSpec& attention = decoder.spec.block.attention();
  attention.rope.rotary_pairs =
      read_mrope(text, attention.rope.pairs(attention.heads.dim), {8, 12, 12}, false);
  VisionEncoder encoder = read_glm_tower(of_vision);
  encoder.spec.placeholder = config.integer("image_token_id", image_token);
  encoder.spec.video_placeholder = encoder.spec.placeholder;
  const int64_t hidden = decoder.spec.block.hidden, width = encoder.spec.block.mlp().intermediate;
  if (width != hidden)
    of_vision.refuse("out_hidden_size", std::to_string(width),
                     std::to_string(hidden) + ", the text's hidden_size");
  const int64_t inner = of_vision.positive("intermediate_size", 13696);
  return make_with_tower(decoder, encoder, kGlmRoot, "", trainable,
                         [&](SpecBuilder& builder, const std::vector<int>& states) {
                           return add_glm_merger(builder, encoder, states.back(), width, inner,
                                                 trainable);
                         });
}

}  // namespace

ModelSpec make_glm4v(const ConfigReader& config, const Trainable& trainable) {
  return make_with_glm_tower(config, read_dense_glm_text(text_of(config)), 151343, trainable);
}

ModelSpec make_glm4v_moe(const ConfigReader& config, const Trainable& trainable) {
  return make_with_glm_tower(config, read_sparse_glm_text(config.object("text_config")), 151363,
                             trainable);
}

ModelSpec make_glm46v(const ConfigReader& config, const Trainable& trainable) {
  static const std::map<std::string, ReadDecoder> texts{{"glm4v_text", read_dense_glm_text},
                                                        {"glm4v_moe_text", read_sparse_glm_text}};
  const ConfigReader of_vision = config.object("vision_config");
  const std::string tower = of_vision.text("model_type", "glm4v_vision");
  if (tower != "glm4v_vision" && tower != "glm4v_moe_vision")
    of_vision.refuse("model_type", tower, "glm4v_vision, glm4v_moe_vision, which are the same");
  Decoder decoder = read_part(texts, config.object("text_config"), "glm4v_text");
  // Transformers writes and reads the experts of this family stacked, unlike those of GLM-4.5V.
  MlpSpec& mlp = decoder.spec.block.mlps.back();
  if (mlp.router) mlp.stack = read_stack(config, WeightOrder::OutIn);
  return make_with_glm_tower(config, std::move(decoder), 151343, trainable);
}

}  // namespace zea::detail
