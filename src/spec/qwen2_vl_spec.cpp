// SPDX-License-Identifier: Apache-2.0
// Qwen2-VL (arXiv:2409.12191): a vision transformer over images of any size, whose patches
// have axial RoPE, a merger that makes one feature of 2 x 2 of them, and a Qwen2
// decoder whose tokens have three positions. In Qwen2.5-VL (arXiv:2502.13923) the transformer has
// the language model's norms and feed-forward, and most of its blocks see windows of an image.
// Files leave out what equals the defaults of transformers' configs; before version 5 the text's
// keys stood among those of the model.
#include <algorithm>
#include <numeric>

#include "spec/qwen_vl.hpp"

namespace zea::detail {
namespace {

constexpr double kVisualEps = 1e-6;  // of the encoder's norms, whatever the config says
const std::string kVisualRoot = "visual.";
constexpr QwenVisionDefaults kDefaults{
    .layers = 32,
    .patch = 14,
    .pixels = {.least = int64_t{56} * 56, .most = int64_t{28} * 28 * 1280},
    .frame_pixels = {.least = int64_t{28} * 28 * 128, .most = int64_t{28} * 28 * 768}};
constexpr LlamaDefaults kTextDefaults{.hidden = 8192,
                                      .intermediate = 29568,
                                      .layers = 80,
                                      .heads = 64,
                                      .key_value_heads = 8,
                                      .vocabulary = 152064,
                                      .positions = 32768,
                                      .end_token = 151645,
                                      .eps = 1e-5,
                                      .theta = 1e6,
                                      .has_mrope = true};

PatchInput read_visual_patches(const ConfigReader& config, const QwenVisionDefaults& defaults) {
  // Names that transformers does not read, and whose values in files are the usual ones.
  config.ignore_keys({"in_chans", "spatial_patch_size"});
  PatchInput patches{.patch_size = config.positive("patch_size", defaults.patch),
                     .channels = config.positive("in_channels", 3),
                     .frames = config.positive("temporal_patch_size", 2),
                     .block = config.positive("spatial_merge_size", 2),
                     .tiling = ImagesWithin{}};
  patches.limit(defaults.pixels);
  if (patches.channels != 3)
    config.refuse("in_channels", std::to_string(patches.channels), "3 (images are read as RGB)");
  if (patches.frames != 2)
    config.refuse("temporal_patch_size", std::to_string(patches.frames),
                  "2 (others are not built yet)");
  patches.video = {.pixels = defaults.frame_pixels};
  return patches;
}

VisionEncoder read_visual(const ConfigReader& config) {
  BlockSpec block;
  block.hidden = config.positive("embed_dim", 1280);
  block.mlp().intermediate = block.hidden * config.positive("mlp_ratio", 4);
  block.mlp().activation = config.activation("hidden_act", "quick_gelu");
  return read_qwen_vision_tower(config, block, "embed_dim", kDefaults);
}

/// All blocks but those of "fullatt_block_indexes" see windows of "window_size" pixels a side.
void read_image_windows(const ConfigReader& config, VisionEncoder& encoder) {
  const PatchInput& patches = encoder.spec.patches();
  const int64_t pixels = config.positive("window_size", 112);
  const int64_t side = pixels / patches.block / patches.patch_size;
  if (side < 1)
    config.refuse("window_size", std::to_string(pixels),
                  std::to_string(patches.block * patches.patch_size) +
                      " (the pixels of a feature's side) or more");
  AttentionSpec of_window = encoder.spec.block.attention();
  of_window.window = side;
  encoder.spec.block.mixers.emplace_back(of_window);
  std::vector<int64_t> full{7, 15, 23, 31};
  const char* key = "fullatt_block_indexes";
  if (config.has(key))  // an empty list: none sees all of an image
    full = config.dump(key) == "[]" ? std::vector<int64_t>{} : config.integers(key, 0);
  for (int64_t layer = 0; layer < encoder.spec.layers; ++layer)
    encoder.blocks.mixer.push_back(std::ranges::count(full, layer) > 0 ? 0 : 1);
}

/// Tokens around images are text like any other.
void pass_over_marks(const ConfigReader& config) {
  config.ignore_keys({"vision_start_token_id", "vision_end_token_id", "vision_token_id"});
}

/// `read`: the tower, whose features have the width that the config calls `width_key`.
ModelSpec make_qwen_vl(const ConfigReader& config, const Trainable& trainable,
                       VisionEncoder (*read)(const ConfigReader&), const char* width_key) {
  pass_over_marks(config);
  const ConfigReader text = text_of(config);
  pass_over_marks(text);
  const ConfigReader of_vision = config.object("vision_config");
  Decoder decoder = read_qwen_vl_text(text, kTextDefaults, kTextDefaults.layers);
  decoder.spec.tied_embeddings = ties_head(config, decoder, true);
  VisionEncoder encoder = read(of_vision);
  encoder.spec.placeholder = config.integer("image_token_id", 151655);
  encoder.spec.video_placeholder = config.integer("video_token_id", 151656);
  const int64_t hidden = decoder.spec.block.hidden;
  require_width(of_vision, width_key, hidden);
  const auto add_projector = [&](SpecBuilder& builder, const std::vector<int>& states) {
    builder.start("vision.projector", "vision", UnitKind::Projector, {{states.back(), false}});
    add_merger(builder, encoder.spec, kVisualRoot + "merger.", kWindowedMerger, hidden,
               trainable.of(encoder.spec.name).projector);
    return std::vector{builder.last_unit()};
  };
  return make_with_tower(decoder, encoder, kVisualRoot, "", trainable, add_projector);
}

}  // namespace

VisionEncoder read_windowed_visual(const ConfigReader& config) {
  config.require_text("hidden_act", "silu");
  BlockSpec block;
  block.hidden = config.positive("hidden_size", 3584);
  block.mlp().intermediate = config.positive("intermediate_size", 3420);
  block.norm.kind = NormKind::Rms;
  block.mlp().gated = true;
  block.mlp().activation = Activation::Silu;
  VisionEncoder encoder = read_qwen_vision_tower(config, block, "hidden_size", kDefaults);
  BlockNames& names = encoder.blocks.names;
  names.gate = ".mlp.gate_proj";
  names.up = ".mlp.up_proj";
  names.down = ".mlp.down_proj";
  read_image_windows(config, encoder);
  encoder.spec.patches().video->positions_per_second = config.positive("tokens_per_second", 4);
  return encoder;
}

ConfigReader text_of(const ConfigReader& config) {
  if (!config.has("text_config")) return config;
  config.ignore_keys({"attention_bias", "attention_dropout", "hidden_act", "hidden_size",
                      "intermediate_size", "layer_types", "max_window_layers",
                      "max_position_embeddings", "num_attention_heads", "num_hidden_layers",
                      "num_key_value_heads", "partial_rotary_factor", "rms_norm_eps",
                      "rope_parameters", "rope_scaling", "rope_theta", "sliding_window",
                      "use_sliding_window", "vocab_size"});
  return config.object("text_config");
}

Decoder read_qwen_vl_text(const ConfigReader& config, const LlamaDefaults& defaults,
                          int64_t windows_from) {
  Decoder decoder = read_llama_like(config, defaults, {.q = true, .k = true, .v = true});
  BlockSpec& block = decoder.spec.block;
  block.attention().rope.rotary_pairs =
      read_mrope(config, block.attention().heads.dim / 2, {16, 24, 24}, false);
  read_windows(config, decoder, windows_from);
  return decoder;
}

VisionEncoder read_qwen_vision_tower(const ConfigReader& config, const BlockSpec& of_family,
                                     const char* width_key, const QwenVisionDefaults& defaults) {
  VisionEncoder encoder;
  EncoderSpec& vision = encoder.spec;
  BlockSpec& block = vision.block = of_family;
  config.ignore_keys({"tie_word_embeddings"});  // transformers writes it into every config
  const double std = config.number("initializer_range", 0.02);
  const int64_t heads = config.positive("num_heads", 16);
  block.norm.eps = kVisualEps;
  block.rotary = true;
  config.require_divisor("num_heads", heads, width_key, block.hidden);
  block.attention().heads = {heads, heads, block.hidden / heads};
  if (block.attention().heads.dim % 4 != 0)
    config.refuse("num_heads", std::to_string(heads),
                  "heads of a multiple of 4 numbers, half of whose pairs turn by rows");
  block.attention().rope =
      read_axial_rope(config, axial_pairs(block.attention().heads.dim / 2, 0), 10000);
  const PatchInput patches = read_visual_patches(config, defaults);
  vision.name = "vision";
  vision.layers = config.positive("depth", defaults.layers);
  vision.input = patches;
  vision.drops_first_token = false;
  vision.projector = {.norm = block.norm, .merge = patches.block * patches.block};
  encoder.blocks = {.names = {.attention_norm = ".norm1",
                              .q = ".attn.qkv",  // one tensor of three parts
                              .k = ".attn.qkv",
                              .v = ".attn.qkv",
                              .out = ".attn.proj",
                              .mlp_norm = ".norm2",
                              .up = ".mlp.fc1",
                              .down = ".mlp.fc2"},
                    .biases = {true, true, true, true, true},
                    .init = {std, std, std, std}};
  encoder.names = {.class_token = {},
                   .patch = "patch_embed.proj",
                   .positions = {},
                   .pre_norm = {},
                   .layers = "blocks."};
  encoder.patch_std = std;
  return encoder;
}

void require_width(const ConfigReader& of_vision, const char* key, int64_t hidden) {
  const int64_t made = of_vision.positive(key, 3584);
  if (made != hidden)
    of_vision.refuse(key, std::to_string(made),
                     std::to_string(hidden) + ", the text's hidden_size");
}

void add_merger(SpecBuilder& builder, const EncoderSpec& vision, const std::string& root,
                const MergerNames& names, int64_t hidden, bool trainable) {
  const int64_t width = vision.block.hidden * vision.projector.merge;
  builder.add_norm("norm", root + names.norm, vision.projector.norm, vision.block.hidden,
                   trainable);
  add_projector_linear(builder, "linear_1", root + names.linear_1, {width, width}, true, trainable);
  add_projector_linear(builder, "linear_2", root + names.linear_2, {hidden, width}, true,
                       trainable);
}

std::vector<RotaryPair> read_mrope(const ConfigReader& config, int64_t pairs,
                                   std::vector<int64_t> sections, bool interleaved) {
  const char* key = "rope_scaling";
  for (const char* one : {"rope_scaling", "rope_parameters"}) {  // the same where it has both
    if (!config.has(one)) continue;
    const ConfigReader rope = config.object(one);
    if (rope.has("mrope_section")) sections = rope.integers("mrope_section", 0);
    // Published configs of Qwen3-Omni have "interleaved", too, which transformers does not read.
    if (rope.has("mrope_interleaved")) rope.ignore_keys({"interleaved"});
    rope.require_boolean("mrope_interleaved", interleaved);
    key = one;
  }
  const auto is_part = [&](int64_t count) { return count > 0 && count <= pairs; };
  const bool are_parts = sections.size() == 3 && std::ranges::all_of(sections, is_part);
  const int64_t sum = are_parts ? std::accumulate(sections.begin(), sections.end(), int64_t{0}) : 0;
  if (sum != pairs)
    config.refuse(std::string(key) + ".mrope_section",
                  std::to_string(sum) + " in " + std::to_string(sections.size()),
                  "3 numbers of 1 or more, whose sum is head_dim / 2 = " + std::to_string(pairs));
  return interleaved ? interleaved_pairs(sections) : chunked_pairs(sections);
}

ModelSpec make_qwen2_vl(const ConfigReader& config, const Trainable& trainable) {
  return make_qwen_vl(config, trainable, read_visual, "hidden_size");
}

ModelSpec make_qwen2_5_vl(const ConfigReader& config, const Trainable& trainable) {
  return make_qwen_vl(config, trainable, read_windowed_visual, "out_hidden_size");
}

}  // namespace zea::detail
