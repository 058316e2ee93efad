// SPDX-License-Identifier: Apache-2.0
// Qwen2-VL (arXiv:2409.12191): a vision transformer over images of any size, whose patches are
// turned by their rows and columns, a merger that makes one feature of 2 x 2 of them, and a Qwen2
// decoder whose tokens have three positions. Files leave out what equals the defaults of
// transformers' Qwen2VLConfig; before version 5 the text's keys stood among those of the model.
#include <algorithm>
#include <numeric>

#include "families.hpp"

namespace zea::detail {
namespace {

constexpr double kVisualEps = 1e-6;  // of the encoder's norms, whatever the config says
const std::string kVisualRoot = "visual.";

PatchInput read_visual_patches(const ConfigReader& config) {
  // Names that transformers does not read, and whose values in files are the usual ones.
  config.pass_over({"in_chans", "spatial_patch_size"});
  PatchInput patches{.patch_size = config.positive("patch_size", 14),
                     .channels = config.positive("in_channels", 3),
                     .frames = config.positive("temporal_patch_size", 2),
                     .block = config.positive("spatial_merge_size", 2),
                     .any_size = true,
                     .crops = false};
  patches.limit({.least = int64_t{56} * 56, .most = int64_t{28} * 28 * 1280});  // of its processor
  if (patches.channels != 3)
    config.refuse("in_channels", std::to_string(patches.channels), "3 (images are read as RGB)");
  if (patches.frames < 2)
    config.refuse("temporal_patch_size", std::to_string(patches.frames),
                  "2 or more (patches of one frame are not built yet)");
  return patches;
}

/// By rows the first half of a head, by columns the second, at the same frequencies.
RopeConfig read_visual_rope(const ConfigReader& config, int64_t head_dim) {
  RopeConfig rope{.sections = {0, head_dim / 4, head_dim / 4}, .restarts = true};
  if (!config.has("rope_parameters")) return rope;
  const ConfigReader found = config.object("rope_parameters");
  found.require_text("rope_type", "axial");
  rope.theta = found.number("rope_theta", rope.theta);
  return rope;
}

VisionEncoder read_visual(const ConfigReader& config) {
  VisionEncoder encoder;
  EncoderSpec& vision = encoder.spec;
  BlockSpec& block = vision.block;
  const double std = config.number("initializer_range", 0.02);
  const int64_t heads = config.positive("num_heads", 16);
  block.hidden = config.positive("embed_dim", 1280);
  block.intermediate = block.hidden * config.positive("mlp_ratio", 4);
  block.norm = {NormKind::Layer, kVisualEps};
  block.rotary = true;
  block.activation = config.activation("hidden_act", "quick_gelu");
  config.require_divisor("num_heads", heads, "embed_dim", block.hidden);
  block.heads = {heads, heads, block.hidden / heads};
  if (block.heads.dim % 4 != 0)
    config.refuse("num_heads", std::to_string(heads),
                  "heads of a multiple of 4 numbers, half of whose pairs turn by rows");
  block.attention = {{.rope = read_visual_rope(config, block.heads.dim)}};
  const PatchInput patches = read_visual_patches(config);
  vision.name = "vision";
  vision.layers = config.positive("depth", 32);
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

void add_merger(SpecBuilder& builder, const EncoderSpec& vision, int64_t hidden, bool trainable) {
  const std::string root = kVisualRoot + "merger.";
  const int64_t width = vision.block.hidden * vision.projector.merge;
  builder.start(vision.name + ".projector", vision.name, UnitKind::Projector,
                {{builder.last_unit(), false}});
  builder.add_norm("norm", root + "ln_q", vision.projector.norm, vision.block.hidden, trainable);
  add_projector_linear(builder, "linear_1", root + "mlp.0", {width, width}, true, trainable);
  add_projector_linear(builder, "linear_2", root + "mlp.2", {hidden, width}, true, trainable);
}

/// Pairs of a head that turn by each of a token's three positions.
std::vector<int64_t> read_sections(const ConfigReader& config, int64_t pairs) {
  const char* parent = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  std::vector<int64_t> sections{16, 24, 24};
  if (config.has(parent) && config.object(parent).has("mrope_section"))
    sections = config.object(parent).integers("mrope_section", 0);
  const bool is_positive = std::ranges::all_of(sections, [](int64_t count) { return count > 0; });
  const int64_t sum = std::accumulate(sections.begin(), sections.end(), int64_t{0});
  if (sections.size() != 3 || !is_positive || sum != pairs)
    config.refuse(std::string(parent) + ".mrope_section",
                  std::to_string(sum) + " in " + std::to_string(sections.size()),
                  "3 numbers of 1 or more, whose sum is head_dim / 2 = " + std::to_string(pairs));
  return sections;
}

Decoder read_turned_text(const ConfigReader& config) {
  Decoder decoder = read_llama_like(config,
                                    {.hidden = 8192,
                                     .intermediate = 29568,
                                     .layers = 80,
                                     .heads = 64,
                                     .key_value_heads = 8,
                                     .vocabulary = 152064,
                                     .positions = 32768,
                                     .end_token = 151645,
                                     .eps = 1e-5,
                                     .theta = 1e6,
                                     .has_mrope = true},
                                    {.q = true, .k = true, .v = true});
  BlockSpec& block = decoder.spec.block;
  block.attention[0].rope.sections = read_sections(config, block.heads.dim / 2);
  read_windows(config, decoder, 80);
  return decoder;
}

/// Files of the last versions before 5 have the text's keys in both places, and these are not read.
ConfigReader text_of(const ConfigReader& config) {
  if (!config.has("text_config")) return config;
  config.pass_over({"attention_dropout", "hidden_act", "hidden_size", "intermediate_size",
                    "layer_types", "max_position_embeddings", "max_window_layers",
                    "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
                    "rms_norm_eps", "rope_scaling", "rope_theta", "sliding_window",
                    "use_sliding_window", "vocab_size"});
  return config.object("text_config");
}

}  // namespace

ModelSpec make_qwen2_vl(const ConfigReader& config, const Trainable& trainable) {
  // Tokens around images are text like any other.
  config.pass_over({"vision_start_token_id", "vision_end_token_id", "vision_token_id"});
  const ConfigReader text = text_of(config);
  const ConfigReader of_vision = config.object("vision_config");
  ModelSpec model;
  Decoder decoder = read_turned_text(text);
  if (config.boolean("tie_word_embeddings", false)) decoder.spec.tied_embeddings = true;
  decoder.spec.video_token = config.integer("video_token_id", 151656);
  model.decoder = decoder.spec;
  VisionEncoder encoder = read_visual(of_vision);
  encoder.spec.placeholder = config.integer("image_token_id", 151655);
  const int64_t hidden = decoder.spec.block.hidden;
  if (of_vision.positive("hidden_size", 3584) != hidden)
    of_vision.refuse("hidden_size", std::to_string(of_vision.positive("hidden_size", 3584)),
                     std::to_string(hidden) + ", the text's hidden_size");
  model.encoders.push_back(encoder.spec);
  const auto [trains, projector_trains] = trainable.of(encoder.spec.name);
  SpecBuilder builder(model);
  add_vision_encoder(builder, encoder, kVisualRoot, trains);
  add_merger(builder, encoder.spec, hidden, projector_trains);
  const int features = builder.last_unit();
  add_decoder(builder, decoder, "", {features}, trainable.llm);
  return model;
}

}  // namespace zea::detail
