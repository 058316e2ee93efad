// SPDX-License-Identifier: Apache-2.0
// Qwen3-VL (arXiv:2511.21631), dense and with mixtures of experts: the tower of Qwen2-VL with a
// table of positions that is laid over every image, a Qwen3 decoder whose tokens have three
// positions, interleaved, and features of several depths of the tower, added behind the decoder's
// first blocks.
#include <algorithm>
#include <map>

#include "spec/qwen_vl.hpp"

namespace zea::detail {
namespace {

const std::string kTowerRoot = "model.visual.", kTextRoot = "model.language_model.";
constexpr QwenVisionDefaults kTower{
    .layers = 27,
    .patch = 16,
    .pixels = {.least = int64_t{256} * 256, .most = int64_t{4096} * 4096},
    .frame_pixels = {.least = 4096, .most = int64_t{24576} * 32 * 32}};
constexpr DeepDefaults kOfQwen3Vl{.image_token = 151655, .video_token = 151656, .is_deep = true};
constexpr DeepMergers kMergers{{"norm", "linear_fc1", "linear_fc2"}, "deepstack_merger_list."};

/// DeepStack projectors normalize after they merge patches.
int add_deep_merger(SpecBuilder& builder, const EncoderSpec& vision, const std::string& root,
                    const MergerNames& names, size_t number, int state, int64_t hidden,
                    bool trainable) {
  const int64_t width = vision.block.hidden * vision.projector.merge;
  const std::string prefix = root + std::to_string(number) + ".";
  builder.start("vision.deepstack." + std::to_string(number), "vision", UnitKind::Projector,
                {{state, false}});
  builder.add_norm("merged_norm", prefix + names.norm, vision.projector.norm, width, trainable);
  add_projector_linear(builder, "linear_1", prefix + names.linear_1, {width, width}, true,
                       trainable);
  add_projector_linear(builder, "linear_2", prefix + names.linear_2, {hidden, width}, true,
                       trainable);
  return builder.last_unit();
}

}  // namespace

VisionEncoder read_deep_visual(const ConfigReader& config) {
  BlockSpec block;
  block.hidden = config.positive("hidden_size", 1152);
  block.mlp().intermediate = config.positive("intermediate_size", 4304);
  block.mlp().activation = config.activation("hidden_act", "gelu_pytorch_tanh");
  VisionEncoder encoder = read_qwen_vision_tower(config, block, "hidden_size", kTower);
  encoder.blocks.names.up = ".mlp.linear_fc1";
  encoder.blocks.names.down = ".mlp.linear_fc2";
  encoder.patch_bias = true;
  PatchInput& patches = encoder.spec.patches();
  patches.colours = {{0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}};
  patches.video->limits_all = true;
  patches.video->has_text_between = true;
  patches.table_side = config.square_root("num_position_embeddings", 2304);
  encoder.names.positions = "pos_embed.weight";
  encoder.position_std = encoder.patch_std;
  return encoder;
}

std::vector<int64_t> read_depths(const ConfigReader& config, int64_t layers, int64_t takers,
                                 bool is_deep) {
  constexpr const char* kKey = "deepstack_visual_indexes";
  if (!is_deep) {
    if (!config.integers(kKey).empty())
      config.refuse(kKey, config.dump(kKey), "[] in this family, or nothing");
    return {};
  }
  std::vector<int64_t> depths{8, 16, 24};
  if (config.has(kKey)) depths = config.integers(kKey, 0);
  for (int64_t depth : depths)
    if (depth < 0 || depth >= layers || std::ranges::count(depths, depth) > 1)
      config.refuse(kKey, std::to_string(depth), "0 to " + std::to_string(layers - 1) + ", once");
  if (std::ssize(depths) > takers)
    config.refuse(kKey, std::to_string(depths.size()) + " depths",
                  "one for each of the text's " + std::to_string(takers) + " layers at most");
  return depths;
}

Decoder read_interleaved_text(const ConfigReader& config, const LlamaDefaults& defaults) {
  const bool biases = config.boolean("attention_bias", false);
  Decoder decoder = read_llama_like(config, defaults, {biases, biases, biases, biases});
  add_head_norms(decoder);
  BlockSpec& block = decoder.spec.block;
  block.attention().rope.rotary_pairs =
      read_mrope(config, block.attention().heads.dim / 2, {24, 20, 20}, true);
  return decoder;
}

std::vector<int> add_deep_mergers(SpecBuilder& builder, const EncoderSpec& vision,
                                  const std::string& root, const DeepMergers& names,
                                  const std::vector<int64_t>& depths,
                                  const std::vector<int>& states, int64_t hidden, bool trainable) {
  std::map<int64_t, int> deep;  // by depth, the order in which the decoder's blocks take them
  for (size_t i = 0; i < depths.size(); ++i)
    deep[depths[i]] = add_deep_merger(builder, vision, root + names.deep, names.each, i,
                                      states[depths[i] + 1], hidden, trainable);
  builder.start("vision.projector", "vision", UnitKind::Projector, {{states.back(), false}});
  add_merger(builder, vision, root + "merger.", names.each, hidden, trainable);
  std::vector<int> features{builder.last_unit()};
  for (const auto& [depth, unit] : deep) features.push_back(unit);
  return features;
}

ModelSpec make_with_deep_tower(const ConfigReader& config, Decoder decoder,
                               const Trainable& trainable, const DeepDefaults& defaults) {
  // Tokens around images are text like any other.
  config.ignore_keys({"vision_start_token_id", "vision_end_token_id"});
  const ConfigReader of_vision = config.object("vision_config");
  decoder.spec.tied_embeddings = ties_head(config, decoder, false);
  VisionEncoder encoder = read_deep_visual(of_vision);
  EncoderSpec& vision = encoder.spec;
  vision.placeholder = config.integer("image_token_id", defaults.image_token);
  vision.video_placeholder = config.integer("video_token_id", defaults.video_token);
  const int64_t hidden = decoder.spec.block.hidden;
  require_width(of_vision, "out_hidden_size", hidden);
  const std::vector<int64_t> depths =
      read_depths(of_vision, vision.layers, decoder.spec.layers, defaults.is_deep);
  const bool trains = trainable.of(vision.name).projector;
  const auto add_projectors = [&](SpecBuilder& builder, const std::vector<int>& states) {
    return add_deep_mergers(builder, vision, kTowerRoot, kMergers, depths, states, hidden, trains);
  };
  return make_with_tower(decoder, encoder, kTowerRoot, "", trainable, add_projectors);
}

ModelSpec make_qwen3_vl(const ConfigReader& config, const Trainable& trainable) {
  const LlamaDefaults defaults{.intermediate = 22016,
                               .head_dim = 128,
                               .vocabulary = 151936,
                               .positions = 128000,
                               .end_token = -1,
                               .theta = 500000,
                               .has_mrope = true};
  Decoder decoder = read_interleaved_text(config.object("text_config"), defaults);
  decoder.names.root = kTextRoot;
  return make_with_deep_tower(config, std::move(decoder), trainable, kOfQwen3Vl);
}

/// Files hold the weights of all experts of a layer in two tensors.
ModelSpec make_qwen3_vl_moe(const ConfigReader& config, const Trainable& trainable) {
  const ConfigReader text = config.object("text_config");
  Decoder decoder = read_interleaved_text(text, {.hidden = 2048,
                                                 .intermediate = 5632,
                                                 .layers = 24,
                                                 .heads = 16,
                                                 .key_value_heads = 16,
                                                 .vocabulary = 151936,
                                                 .positions = 128000,
                                                 .end_token = -1,
                                                 .theta = 500000,
                                                 .has_mrope = true});
  decoder.names.root = kTextRoot;
  text.ignore_keys({"norm_topk_prob"});  // the model divides gates by their sum, whatever it says
  add_mixture(text, decoder, sparse_layers(text, decoder.spec.layers),
              {.intermediate = 1408,
               .experts = 60,
               .chosen = 4,
               .always_renormalizes = true,
               .stack = WeightOrder::InOut},
              qwen_expert_names(false));
  return make_with_deep_tower(config, std::move(decoder), trainable, kOfQwen3Vl);
}

}  // namespace zea::detail
