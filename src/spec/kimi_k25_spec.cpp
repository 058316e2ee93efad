// SPDX-License-Identifier: Apache-2.0
// Kimi-K2.5: DeepSeek-V3's decoder and MoonViT (arXiv:2504.07491), an encoder of images of any
// size. Its patches have a table of positions that is interpolated to each image by cubic
// convolution, and axial RoPE whose pairs rotate by column and row in turn. Features of 2 x 2
// patches are normed, concatenated and projected. The frames of a video chunk attend to each other,
// with sinusoidal temporal embeddings, and are averaged before the projector.
#include "spec/parameter_names.hpp"
#include "spec/qwen_vl.hpp"

namespace zea::detail {

Decoder read_deepseek_v3(const ConfigReader&);

namespace {

constexpr int64_t kMoonPatches = 16384;      ///< most patches of an image, by default
constexpr int64_t kMoonFramePatches = 4096;  ///< most patches of a video frame, by default
constexpr int64_t kMoonSide = 512;           ///< most patches along a side, by default
constexpr int64_t kMoonFrames = 4;           ///< frames of a video chunk, by default

/// Reads a key that published configs call by another name.
int64_t read_renamed(const ConfigReader& config, const char* key, const char* published,
                     int64_t usual) {
  return config.positive(key, config.has(published) ? config.positive(published, usual) : usual);
}

int64_t read_merged_side(const ConfigReader& config) {
  constexpr int64_t kMost = 16;
  const char* key = "merge_kernel_size";
  const std::vector<int64_t> sides =
      config.has(key) ? config.integers(key, 0) : std::vector<int64_t>{2, 2};
  if (sides.size() != 2 || sides[0] != sides[1] || sides[0] < 1 || sides[0] > kMost)
    config.refuse(key, config.dump(key), "two equal numbers of 1 to " + std::to_string(kMost));
  return sides[0];
}

PatchInput read_moonvit_patches(const ConfigReader& config) {
  constexpr int64_t kMostPixels = 4096;  // of a patch's side, for limits that are no overflow
  constexpr int64_t kMostTimes = 4096;   // positions in time, likewise
  const int64_t patch = config.side("patch_size", 14);
  if (patch > kMostPixels)
    config.refuse("patch_size", std::to_string(patch), "1 to " + std::to_string(kMostPixels));
  PatchInput patches{
      .patch_size = patch,
      .block = read_merged_side(config),
      .tiling = ImagesPadded{.pixels = {.most = kMoonPatches * patch * patch}, .side = kMoonSide},
      .by_torchvision = true,  // its processor has no other form
      .table_side = read_renamed(config, "pos_emb_height", "init_pos_emb_height", 64),
      .table_fit = TableFit::Cubic,
      .colours = {.mean = {0.5, 0.5, 0.5}, .std = {0.5, 0.5, 0.5}}};
  patches.limit(*patches.pixel_limits());
  const int64_t wide = read_renamed(config, "pos_emb_width", "init_pos_emb_width", 64);
  if (wide != patches.table_side)
    config.refuse("pos_emb_width", std::to_string(wide),
                  "pos_emb_height = " + std::to_string(patches.table_side) +
                      " (transformers reads the table as a square)");
  config.ignore_keys({"tie_word_embeddings"});  // transformers writes it into every config
  const int64_t times = read_renamed(config, "pos_emb_time", "init_pos_emb_time", kMoonFrames);
  if (times > kMostTimes)
    config.refuse("pos_emb_time", std::to_string(times), "1 to " + std::to_string(kMostTimes));
  patches.video = VideoInput{.pixels = {.most = kMoonFramePatches * patch * patch},
                             .most_frames = std::min(times, kMoonFrames),
                             .averages = true,
                             .time_positions = times,
                             .most_side = kMoonSide};
  return patches;
}

/// Returns pairs that rotate by column and row in turn, both at every other frequency.
std::vector<RotaryPair> alternating_pairs(int64_t pairs) {
  std::vector<RotaryPair> found;
  for (int64_t pair = 0; pair < pairs; ++pair) found.push_back({2 - pair % 2, pair / 2 * 2});
  return found;
}

AttentionSpec read_moonvit_attention(const ConfigReader& config, int64_t hidden) {
  const int64_t heads = read_renamed(config, "num_attention_heads", "vt_num_attention_heads", 16);
  config.require_divisor("num_attention_heads", heads, "hidden_size", hidden);
  const int64_t dim = hidden / heads;
  if (dim % 4 != 0)
    config.refuse("num_attention_heads", std::to_string(heads),
                  "heads of a multiple of 4 coordinates, half of whose pairs rotate by rows");
  return {.heads = {heads, heads, dim},
          .rope = read_axial_rope(config, alternating_pairs(dim / 2), 10000)};
}

/// `is_running`: the weights are those of transformers' running model, whose queries and keys are
/// permuted so that halves of a head rotate, and which stacks experts.
VisionEncoder read_moonvit(const ConfigReader& config, bool is_running) {
  // Each has one value in this family.
  config.require_text("merge_type", "sd2_tpool");
  config.require_text("mm_projector_type", "patchmerger");
  config.require_text("pos_emb_type", "divided_fixed");
  config.require_text("projector_hidden_act", "gelu");
  config.require_text("video_attn_type", "spatial_temporal");
  VisionEncoder encoder;
  EncoderSpec& vision = encoder.spec;
  BlockSpec& block = vision.block;
  const double std = config.number("initializer_range", 0.02);
  block.hidden = read_renamed(config, "hidden_size", "vt_hidden_size", 1152);
  block.mlp().intermediate =
      read_renamed(config, "intermediate_size", "vt_intermediate_size", 4304);
  block.mlp().activation = config.activation("hidden_act", "gelu_pytorch_tanh");
  block.rotary = true;
  block.attention() = read_moonvit_attention(config, block.hidden);
  block.attention().rope.of_neighbors = !is_running;
  vision.name = "vision";
  vision.layers = read_renamed(config, "num_hidden_layers", "vt_num_hidden_layers", 27);
  vision.input = read_moonvit_patches(config);
  vision.drops_first_token = false;
  encoder.blocks = {.names = {.attention_norm = ".norm0",
                              .q = ".wqkv",  // one tensor of three parts
                              .k = ".wqkv",
                              .v = ".wqkv",
                              .out = ".wo",
                              .mlp_norm = ".norm1",
                              .up = ".mlp.fc0",
                              .down = ".mlp.fc1"},
                    .biases = {true, true, true, true, true},
                    .init = {std, std, std, std}};
  if (is_running) {
    BlockNames& names = encoder.blocks.names;
    names.q = ".attn.q_proj";
    names.k = ".attn.k_proj";
    names.v = ".attn.v_proj";
  }
  encoder.names = {.class_token = {},
                   .patch = "patch_embed.proj",
                   .positions = "patch_embed.pos_emb.weight",
                   .pre_norm = {},
                   .layers = "encoder.blocks.",
                   .final_norm = "encoder.final_layernorm"};
  encoder.norms_features = encoder.patch_bias = encoder.has_square_table = true;
  encoder.patch_std = std;
  encoder.position_std = 1;
  return encoder;
}

/// Reads the projector, whose settings are the model's or, in published configs, the encoder's.
ProjectorSpec read_moonvit_projector(const ConfigReader& config, const ConfigReader& of_vision,
                                     const EncoderSpec& vision, int64_t hidden) {
  const int64_t block = vision.patches().block;
  if (of_vision.positive("text_hidden_size", hidden) != hidden)
    of_vision.refuse("text_hidden_size", of_vision.dump("text_hidden_size"),
                     std::to_string(hidden) + ", the text's hidden_size");
  const bool is_published = !of_vision.is_null("mm_hidden_size") && of_vision.has("mm_hidden_size");
  const int64_t usual = is_published ? of_vision.positive("mm_hidden_size", 0) : 1152;
  const int64_t width = config.positive("projection_hidden_size", usual);
  if (width != vision.block.hidden)
    config.refuse("projection_hidden_size", std::to_string(width),
                  std::to_string(vision.block.hidden) + ", the encoder's hidden_size");
  const double eps = of_vision.number("projector_ln_eps", 1e-5);
  return {.norm = {NormKind::Layer, config.number("projection_layer_norm_eps", eps)},
          .merge = block * block};
}

/// Adds the projector's unit, which also has the encoder's final norm.
std::vector<int> add_moonvit_projector(SpecBuilder& builder, const VisionEncoder& encoder,
                                       const std::string& root, int state, int64_t hidden,
                                       const Trainable::Encoder& trains) {
  const EncoderSpec& vision = encoder.spec;
  builder.start("vision.projector", "vision", UnitKind::Projector, {{state, false}});
  builder.add_norm("encoder_norm", root + encoder.names.final_norm, vision.block.norm,
                   vision.block.hidden, trains.encoder);
  add_merger(builder, vision, "mm_projector.", {"pre_norm", "proj.0", "proj.2"}, hidden,
             trains.projector);
  return {builder.last_unit()};
}

}  // namespace

ModelSpec make_kimi_k25(const ConfigReader& config, const Trainable& trainable) {
  static const std::map<std::string, ReadDecoder> texts{{"deepseek_v3", read_deepseek_v3},
                                                        {"kimi_k2", read_deepseek_v3}};
  const std::string root = "vision_tower.";
  const ConfigReader of_vision = config.object("vision_config");
  // Tokens around images and videos are ordinary text tokens.
  config.ignore_keys({"ignore_index", "use_unified_vision_chunk", "video_placeholder",
                      "vision_end_token_id", "vision_start_token_id"});
  const bool is_running =
      config.has(kWeightsFiles) && config.object(kWeightsFiles).text("names", "") == kRunningNames;
  Decoder decoder = read_part(texts, config.object("text_config"), "deepseek_v3");
  decoder.spec.tied_embeddings = config.boolean("tie_word_embeddings", true);
  if (is_running && decoder.spec.block.mlps.back().router)
    decoder.spec.block.mlps.back().stack = WeightOrder::OutIn;
  const int64_t hidden = decoder.spec.block.hidden;
  VisionEncoder encoder = read_moonvit(of_vision, is_running);
  encoder.spec.projector = read_moonvit_projector(config, of_vision, encoder.spec, hidden);
  encoder.spec.placeholder =
      config.integer("image_token_id", config.integer("media_placeholder_token_id", 163605));
  // Published configs use one placeholder for images and video chunks.
  const bool has_one = config.has("media_placeholder_token_id") && !config.has("video_token_id");
  encoder.spec.video_placeholder =
      has_one ? encoder.spec.placeholder : config.integer("video_token_id", 163840);
  return make_with_tower(decoder, encoder, root, "language_model.", trainable,
                         [&](SpecBuilder& builder, const std::vector<int>& states) {
                           return add_moonvit_projector(builder, encoder, root, states.back(),
                                                        hidden, trainable.of("vision"));
                         });
}

}  // namespace zea::detail
