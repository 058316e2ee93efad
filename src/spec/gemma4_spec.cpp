// SPDX-License-Identifier: Apache-2.0
// The language model of Gemma 4: its layers without a window have larger heads, fewer KV heads,
// partial RoPE, and in some models keys that are also the values. In E2B and E4B the last layers
// share keys and values of earlier ones, and each layer has a per-layer input. Files leave out
// values that equal the defaults of transformers' configs.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "spec/families.hpp"

namespace zea::detail {
namespace {

constexpr const char* kPerLayer = "per_layer_config";

/// Refuses bidirectional attention in text.
void refuse_unbuilt(const ConfigReader& config) {
  const std::string key = "use_bidirectional_attention";
  if (config.has(key.c_str()) && config.text(key.c_str(), "") != "vision")
    config.refuse(key, config.dump(key.c_str()),
                  "null, \"vision\" (bidirectional attention in text is not built)");
  config.ignore_keys({"use_bidirectional_attention"});  // "vision" concerns image tokens
}

/// Reads per-layer inputs, unless "hidden_size_per_layer_input" is 0.
void read_layer_inputs(const ConfigReader& config, Decoder& decoder) {
  constexpr const char *kWidth = "hidden_size_per_layer_input",
                       *kRows = "vocab_size_per_layer_input";
  config.ignore_keys({kRows});
  const int64_t width = config.integer(kWidth, 256);
  if (width == 0) return;
  LayerInputSpec& spec = decoder.spec.block.layer_input;
  spec = {.width = config.positive(kWidth, 256),
          .vocabulary = config.positive(kRows, 262144),
          .placeholder_id = config.integer("pad_token_id", 0)};
  if (spec.vocabulary < decoder.spec.vocabulary)
    config.refuse(kRows, std::to_string(spec.vocabulary),
                  "vocab_size = " + std::to_string(decoder.spec.vocabulary) + " or more");
  if (spec.placeholder_id < 0 || spec.placeholder_id >= spec.vocabulary)
    config.refuse("pad_token_id", std::to_string(spec.placeholder_id),
                  "an id below " + std::string(kRows) + " = " + std::to_string(spec.vocabulary));
  decoder.blocks.names.layer_input = {.gate = ".per_layer_input_gate",
                                      .projection = ".per_layer_projection",
                                      .post_norm = ".post_per_layer_input_norm",
                                      .table = "embed_tokens_per_layer",
                                      .context = "per_layer_model_projection",
                                      .context_norm = "per_layer_projection_norm"};
}

/// Lets the last "num_kv_shared_layers" layers read the keys and values of the last layer of their
/// type before them; these layers may have MLPs of twice the width.
void share_keys(const ConfigReader& config, const std::vector<bool>& narrow, Decoder& decoder) {
  constexpr const char* kShared = "num_kv_shared_layers";
  const auto layers = std::ssize(narrow);
  const int64_t shared = config.integer(kShared, 0);
  const bool are_wide = config.boolean("use_double_wide_mlp", false);
  if (shared == 0) return;
  if (shared < 0 || shared >= layers)
    config.refuse(kShared, std::to_string(shared),
                  "0 to " + std::to_string(layers - 1) + ", fewer than num_hidden_layers");
  const int64_t first = layers - shared;
  BlockFamily& blocks = decoder.blocks;
  blocks.keys.assign(narrow.size(), -1);
  for (int64_t layer = first; layer < layers; ++layer) {
    int64_t source = first - 1;
    while (source >= 0 && narrow[source] != narrow[layer]) --source;
    if (source < 0)
      config.refuse(kShared, std::to_string(shared),
                    std::string("fewer: a layer before the last ones must be of ") +
                        (narrow[layer] ? "sliding_attention" : "full_attention"));
    blocks.keys[layer] = blocks.keys[source] = static_cast<int>(source);
  }
  if (!are_wide) return;
  std::vector<MlpSpec>& mlps = decoder.spec.block.mlps;
  mlps.push_back(mlps.front());
  int64_t& width = mlps.back().router ? mlps.back().plain_intermediate : mlps.back().intermediate;
  width = 2 * std::min(width, int64_t{1} << 41);  // no overflow; such widths are refused later
  blocks.mlp.assign(narrow.size(), 0);
  std::fill(blocks.mlp.begin() + first, blocks.mlp.end(), 1);
}

/// Gives each layer experts beside its MLP (26B-A4B).
void read_experts_beside_mlps(const ConfigReader& config, Decoder& decoder) {
  const std::vector<const char*> sizes{"num_experts", "top_k_experts", "moe_intermediate_size"};
  config.ignore_keys(sizes);
  if (!config.boolean("enable_moe_block", false)) return;
  for (const char* key : sizes)
    if (!config.has(key))
      config.refuse(key, config.dump(key), "1 or more, as enable_moe_block is true");
  MlpSpec& mlp = decoder.spec.block.mlp();
  const RouterSpec router{.experts = config.positive("num_experts", 1),
                          .chosen = config.positive("top_k_experts", 1),
                          .norm_topk_prob = true};
  // Each has parameters of its own.
  constexpr int64_t kMost = int64_t{1} << 17;
  if (router.experts > kMost)
    config.refuse("num_experts", std::to_string(router.experts), "1 to " + std::to_string(kMost));
  if (router.chosen > router.experts)
    config.refuse("top_k_experts", std::to_string(router.chosen),
                  "at most num_experts = " + std::to_string(router.experts));
  mlp.plain_intermediate = mlp.intermediate;
  mlp.intermediate = config.positive("moe_intermediate_size", 1);
  mlp.router = router;
  mlp.stack = WeightOrder::OutIn;
  decoder.blocks.names.experts = {.router = ".router.proj",
                                  .experts = ".experts.",
                                  .router_norm = ".router.scale",
                                  .gate_scale = ".router.per_expert_scale",
                                  .norm = ".pre_feedforward_layernorm_2",
                                  .post_norm = ".post_feedforward_layernorm_2",
                                  .plain_post_norm = ".post_feedforward_layernorm_1"};
}

/// Returns the layers with a window: all but every sixth and the last, or as "layer_types" says.
std::vector<bool> windowed_layers(const ConfigReader& config, int64_t layers) {
  constexpr int64_t kPeriod = 6;
  std::vector<bool> usual;
  for (int64_t layer = 1; layer <= layers; ++layer)
    usual.push_back(layer % kPeriod != 0 && layer < layers);
  std::vector<bool> found = sliding_layers(config, usual, true);
  if (found.back())
    config.refuse("layer_types", "sliding_attention as the last",
                  "full_attention as the last, which transformers makes of it");
  return found;
}

/// Returns the key of each layer in "per_layer_config": the layer number, which transformers pads
/// with zeros.
std::map<int64_t, std::string> keys_by_layer(const ConfigReader& layers, int64_t count) {
  std::map<int64_t, std::string> found;
  for (const std::string& key : layers.keys()) {
    int64_t layer = -1;
    const char* const end = key.data() + key.size();
    const auto [rest, error] = std::from_chars(key.data(), end, layer);
    if (error != std::errc() || rest != end || layer < 0 || layer >= count ||
        !found.emplace(layer, key).second)
      layers.refuse(key, layers.dump(key.c_str()),
                    "a layer number, 0 to " + std::to_string(count - 1) + ", each once");
  }
  return found;
}

/// transformers 5 writes the settings of a layer without a window under the layer number, except
/// for settings that equal those of the other layers, unless serialize_explicit_per_layer_config is
/// true.
void read_layers(const ConfigReader& config, const std::vector<bool>& narrow, HeadShape& heads) {
  const ConfigReader layers = config.object(kPerLayer);
  const auto keys = keys_by_layer(layers, std::ssize(narrow));
  std::optional<HeadShape> first;
  for (size_t layer = 0; layer < narrow.size(); ++layer) {
    const auto key = keys.find(static_cast<int64_t>(layer));
    HeadShape found = heads;
    if (key != keys.end()) {
      const ConfigReader own = layers.object(key->second.c_str());
      found.key_value = own.positive("num_key_value_heads", heads.key_value);
      found.dim = own.positive("head_dim", heads.dim);
    }
    const auto differs = [&found](const HeadShape& other) {
      return found.key_value != other.key_value || found.dim != other.dim;
    };
    if (narrow[layer]) {
      if (differs(heads))
        layers.refuse(key->second, layers.dump(key->second.c_str()),
                      "for layers of sliding_attention the head_dim and num_key_value_heads of "
                      "the whole model, or nothing");
      continue;
    }
    if (first && differs(*first)) {
      const std::string name = key == keys.end() ? std::to_string(layer) : key->second;
      layers.refuse(name, layers.dump(name.c_str()),
                    "the same heads in all layers of full_attention");
    }
    first = found;
  }
  if (first) heads = *first;
}

/// Returns the heads of layers without a window; `heads`: of the others.
HeadShape read_wide_heads(const ConfigReader& config, const std::vector<bool>& narrow,
                          HeadShape heads, bool keys_are_values) {
  constexpr const char *kDim = "global_head_dim", *kKeyHeads = "num_global_key_value_heads";
  const char *dim = kDim, *key_heads = kKeyHeads;
  const bool has_layers = config.has(kPerLayer);
  if (has_layers || config.is_null(kPerLayer)) {  // null: all layers have the same heads
    // transformers does not read the first two here either.
    config.ignore_keys({kDim, kKeyHeads, "allow_global_per_layer_attribute_access",
                        "serialize_explicit_per_layer_config"});
    if (has_layers) read_layers(config, narrow, heads);
    dim = key_heads = kPerLayer;
  } else {
    heads.dim = config.positive(kDim, 512);
    if (keys_are_values && config.has(kKeyHeads)) heads.key_value = config.positive(kKeyHeads, 1);
    config.ignore_keys({kKeyHeads});  // without keys that are values transformers does not read it
  }
  config.require_divisor(key_heads, heads.key_value, "num_attention_heads", heads.query);
  if (heads.dim % 2 != 0) config.refuse(dim, std::to_string(heads.dim), "an even number");
  return heads;
}

/// Reads the rotary positions of one type of layer: of default ones all of a head rotates, whatever
/// its share.
RopeConfig read_rope_of(const ConfigReader& config, const std::string& type, RopeConfig rope) {
  if (!config.has("rope_parameters")) return rope;
  const ConfigReader all = config.object("rope_parameters");
  if (!all.has(type.c_str()))
    all.refuse(type, all.dump(type.c_str()), "an object with rope_type and rope_theta");
  const ConfigReader own = all.object(type.c_str());
  const std::string name = own.text("rope_type", "default");
  if (name != "default" && name != "proportional")
    own.refuse("rope_type", name, "default, proportional (others are not built in this family)");
  RopeConfig found{.theta = own.number("rope_theta", rope.theta)};
  const double share = own.number("partial_rotary_factor", 1), factor = own.number("factor", 1);
  if (name == "default") return found;
  if (share <= 0 || share > 1)
    own.refuse("partial_rotary_factor", std::to_string(share), "above 0, and at most 1");
  if (factor <= 0) own.refuse("factor", std::to_string(factor), "above 0");
  found.type = RopeType::Proportional;
  found.share = share;
  found.factor = factor;
  return found;
}

}  // namespace

Decoder read_gemma4(const ConfigReader& config) {
  refuse_unbuilt(config);
  const bool biases = config.boolean("attention_bias", false);
  Decoder decoder = read_llama_like(config,
                                    {.hidden = 2304,
                                     .intermediate = 9216,
                                     .layers = 30,
                                     .heads = 8,
                                     .key_value_heads = 4,
                                     .head_dim = 256,
                                     .vocabulary = 262144,
                                     .positions = 131072,
                                     .end_token = 1,
                                     .activation_key = "hidden_activation",
                                     .activation = "gelu_pytorch_tanh",
                                     .tied = true,
                                     .has_own_rope = true},
                                    {biases, biases, biases, biases});
  DecoderSpec& text = decoder.spec;
  text.embedding_scale = std::sqrt(static_cast<double>(text.block.hidden));
  text.logit_softcap = read_cap(config, "final_logit_softcapping", 0);
  add_head_norms(decoder);
  add_norms_after_halves(decoder);
  decoder.blocks.names.output_scale = ".layer_scalar";
  read_layer_inputs(config, decoder);
  read_experts_beside_mlps(config, decoder);
  AttentionSpec of_window = text.block.attention();
  of_window.scores.scale = 1;
  of_window.norms_values = true;
  of_window.window = config.positive("sliding_window", 512);
  of_window.rope = read_rope_of(config, "sliding_attention", {.theta = 10000});
  const std::vector<bool> narrow = windowed_layers(config, text.layers);
  share_keys(config, narrow, decoder);
  AttentionSpec wide = of_window;
  wide.window = 0;
  wide.keys_are_values = config.boolean("attention_k_eq_v", false);
  wide.heads = read_wide_heads(config, narrow, of_window.heads, wide.keys_are_values);
  wide.rope = read_rope_of(config, "full_attention",
                           {.theta = 1e6, .share = 0.25, .type = RopeType::Proportional});
  text.block.mixers = {wide};
  if (std::ranges::count(narrow, true) == 0) return decoder;
  text.block.mixers.emplace_back(of_window);
  decoder.blocks.mixer.assign(narrow.begin(), narrow.end());
  return decoder;
}

}  // namespace zea::detail
