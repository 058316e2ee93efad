// SPDX-License-Identifier: Apache-2.0
// The text of Gemma 4 as a spec: names, shapes, both kinds of layer, and refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "support/config_refusal.hpp"

namespace zea::test_gemma4 {
namespace {

using testing::expect_refusal;
using testing::refusal_of;

constexpr const char *kSliding = "sliding_attention", *kFull = "full_attention";

nlohmann::json config_with(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config{{"model_type", "gemma4_text"},
                        {"hidden_size", 24},
                        {"intermediate_size", 40},
                        {"num_hidden_layers", 2},
                        {"layer_types", {kSliding, kFull}},
                        {"num_attention_heads", 4},
                        {"num_key_value_heads", 2},
                        {"head_dim", 6},
                        {"global_head_dim", 8},
                        {"num_global_key_value_heads", 1},
                        {"attention_k_eq_v", true},
                        {"sliding_window", 3},
                        {"hidden_size_per_layer_input", 0},
                        {"vocab_size", 61}};
  config.update(changes);
  return config;
}

ModelSpec model_with(const nlohmann::json& changes = nlohmann::json::object()) {
  return make_model_spec(config_with(changes).dump());
}

const AttentionSpec& layer(const ModelSpec& model, int number) {
  return model.attention(model.units.at(static_cast<size_t>(1 + number)));
}

TEST(Gemma4, HasTheNamesAndShapesOfItsFiles) {
  const ModelSpec model = model_with();
  const auto shape = [&](const std::string& name) {
    return model.params.at(static_cast<size_t>(model.param_index("model.layers." + name))).shape;
  };
  EXPECT_EQ(shape("0.self_attn.q_proj.weight"), (Shape{24, 24}));
  EXPECT_EQ(shape("0.self_attn.v_proj.weight"), (Shape{12, 24}));
  EXPECT_EQ(shape("0.self_attn.k_norm.weight"), Shape{6});
  EXPECT_EQ(shape("1.self_attn.q_proj.weight"), (Shape{32, 24}));
  EXPECT_EQ(shape("1.self_attn.k_proj.weight"), (Shape{8, 24}));
  EXPECT_EQ(shape("1.self_attn.o_proj.weight"), (Shape{24, 32}));
  EXPECT_EQ(shape("1.self_attn.q_norm.weight"), Shape{8});
  EXPECT_EQ(shape("1.post_feedforward_layernorm.weight"), Shape{24});
  EXPECT_EQ(model.param_index("model.layers.1.self_attn.v_proj.weight"), -1);
  const ParamSpec& scale =
      model.params.at(static_cast<size_t>(model.param_index("model.layers.1.layer_scalar")));
  EXPECT_EQ(scale.shape, Shape{1});
  EXPECT_FALSE(scale.trainable);
  EXPECT_TRUE(scale.used);
  EXPECT_EQ(model.decoder.block.norm.offset, 0);
}

TEST(Gemma4, LayersDiffer) {
  const ModelSpec model = model_with();
  const AttentionSpec &sliding = layer(model, 0), &full = layer(model, 1);
  EXPECT_EQ(sliding.window, 3);
  EXPECT_EQ(full.window, 0);
  EXPECT_EQ(sliding.heads.dim, 6);
  EXPECT_EQ(full.heads.dim, 8);
  EXPECT_EQ(full.heads.key_value, 1);
  EXPECT_FALSE(sliding.keys_are_values);
  EXPECT_TRUE(full.keys_are_values && full.norms_values && sliding.norms_values);
  EXPECT_EQ(full.scores.scale, 1);
  EXPECT_EQ(sliding.rope, RopeConfig{.theta = 10000});
  EXPECT_EQ(full.rope.pairs(8), 4);
  EXPECT_EQ(full.rope.rotating_pairs(8), 1);
  EXPECT_EQ(model.decoder.block.fewest_key_heads(), 1);
}

TEST(Gemma4, LayersThatReadNoOwnValuesKeepTheirKeyHeads) {
  const ModelSpec model = model_with({{"attention_k_eq_v", false}});
  EXPECT_EQ(layer(model, 1).heads.key_value, 2);
  EXPECT_GE(model.param_index("model.layers.1.self_attn.v_proj.weight"), 0);
}

TEST(Gemma4, EverySixthLayerAndTheLastSeeAllTokens) {
  nlohmann::json config = config_with({{"num_hidden_layers", 8}});
  config.erase("layer_types");
  const ModelSpec model = make_model_spec(config.dump());
  std::vector<int64_t> windows;
  for (int number = 0; number < 8; ++number) windows.push_back(layer(model, number).window);
  EXPECT_EQ(windows, (std::vector<int64_t>{3, 3, 3, 3, 3, 0, 3, 0}));
}

/// As transformers 5 writes them.
TEST(Gemma4, ReadsTheHeadsOfEachLayer) {
  nlohmann::json config = config_with();
  config.erase("global_head_dim");
  config.erase("num_global_key_value_heads");
  const auto with = [&](const nlohmann::json& layers) {
    nlohmann::json changed = config;
    changed["per_layer_config"] = layers;
    return changed;
  };
  const nlohmann::json own{{"head_dim", 10}, {"num_key_value_heads", 4}};
  const ModelSpec model = make_model_spec(with({{"1", own}}).dump());
  EXPECT_EQ(layer(model, 0).heads.dim, 6);
  EXPECT_EQ(layer(model, 1).heads.dim, 10);
  EXPECT_EQ(layer(model, 1).heads.key_value, 4);
  expect_refusal(refusal_of(with({{"0", own}, {"1", own}})), "per_layer_config.0 = ");
  EXPECT_EQ(layer(make_model_spec(with(nlohmann::json::object()).dump()), 1).heads.dim, 6);
  expect_refusal(refusal_of(with({{"1", {{"head_dim", 10}, {"sliding_window", 4}}}})),
                 "per_layer_config.1.sliding_window");
  nlohmann::json more = with({{"1", own}, {"2", {{"head_dim", 12}}}});
  more["num_hidden_layers"] = 3;
  more["layer_types"] = {kSliding, kFull, kFull};
  expect_refusal(refusal_of(more), "the same heads in all layers of full_attention");
  more["per_layer_config"]["2"] = own;
  EXPECT_EQ(refusal_of(more), "accepted");
  // transformers ignores these keys beside per_layer_config, also if that is null.
  more["global_head_dim"] = 14;
  more["num_global_key_value_heads"] = 1;
  EXPECT_EQ(layer(make_model_spec(more.dump()), 2).heads.dim, 10);
  EXPECT_EQ(layer(make_model_spec(more.dump()), 2).heads.key_value, 4);
  more["per_layer_config"] = nullptr;
  const ModelSpec even = make_model_spec(more.dump());
  EXPECT_EQ(layer(even, 2).heads.dim, layer(even, 0).heads.dim);
  EXPECT_EQ(layer(even, 2).heads.key_value, layer(even, 0).heads.key_value);
}

/// As transformers 5 writes them with serialize_explicit_per_layer_config.
TEST(Gemma4, ReadsTheHeadsOfLayersWithAWindow) {
  nlohmann::json config = config_with();
  const nlohmann::json usual{{"head_dim", config.at("head_dim")},
                             {"num_key_value_heads", config.at("num_key_value_heads")}};
  config["per_layer_config"] = {{"0", usual}, {"1", {{"head_dim", 10}}}};
  config["serialize_explicit_per_layer_config"] = true;
  const ModelSpec model = make_model_spec(config.dump());
  EXPECT_EQ(layer(model, 0).heads.dim, 6);
  EXPECT_EQ(layer(model, 1).heads.dim, 10);
  for (const char* key : {"head_dim", "num_key_value_heads"}) {
    nlohmann::json changed = config;
    changed["per_layer_config"]["0"][key] = 4;
    expect_refusal(refusal_of(changed), "allowed: for layers of sliding_attention the head_dim");
  }
}

/// The keys are those that Gemma4TextConfig(num_hidden_layers=12) saves.
TEST(Gemma4, ReadsLayerNumbersThatArePaddedWithZeros) {
  const auto with = [](const nlohmann::json& layers) {
    nlohmann::json config = config_with({{"num_hidden_layers", 12}, {"per_layer_config", layers}});
    for (const char* key : {"layer_types", "global_head_dim", "num_global_key_value_heads"})
      config.erase(key);
    return config;
  };
  const nlohmann::json own{{"head_dim", 10}};
  const ModelSpec model = make_model_spec(with({{"05", own}, {"11", own}}).dump());
  EXPECT_EQ(layer(model, 4).heads.dim, 6);
  EXPECT_EQ(layer(model, 5).heads.dim, 10);
  EXPECT_EQ(layer(model, 11).heads.dim, 10);
  expect_refusal(refusal_of(with({{"05", own}})),
                 "per_layer_config.11 = nothing; allowed: the same");
  for (const char* key : {"12", "-5", "5 ", "", "5x"})
    expect_refusal(refusal_of(with({{key, own}, {"11", own}})),
                   "allowed: a layer number, 0 to 11, each once");
  expect_refusal(refusal_of(with({{"05", own}, {"5", own}, {"11", own}})), "each once");
}

TEST(Gemma4, LayersHaveExpertsBesideTheirMlp) {
  const ModelSpec model = model_with({{"enable_moe_block", true},
                                      {"num_experts", 4},
                                      {"top_k_experts", 2},
                                      {"moe_intermediate_size", 12}});
  const auto shape = [&](const std::string& name) {
    return model.params.at(static_cast<size_t>(model.param_index("model.layers.0." + name))).shape;
  };
  EXPECT_EQ(shape("mlp.gate_proj.weight"), (Shape{40, 24}));
  EXPECT_EQ(shape("experts.gate_up_proj"), (Shape{4, 24, 24}));
  EXPECT_EQ(shape("experts.down_proj"), (Shape{4, 24, 12}));
  EXPECT_EQ(shape("router.proj.weight"), (Shape{4, 24}));
  EXPECT_EQ(shape("router.scale"), Shape{24});
  EXPECT_EQ(shape("router.per_expert_scale"), Shape{4});
  EXPECT_EQ(shape("post_feedforward_layernorm_2.weight"), Shape{24});
  EXPECT_EQ(model.num_parameters() - model.num_active_parameters(), 2 * 2 * 3 * 12 * 24);
}

/// The last three of six layers read keys and values of the second and third one.
nlohmann::json like_e4b(const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config =
      config_with({{"num_hidden_layers", 6},
                   {"layer_types", {kSliding, kFull, kSliding, kFull, kSliding, kFull}},
                   {"num_kv_shared_layers", 3},
                   {"use_double_wide_mlp", true},
                   {"hidden_size_per_layer_input", 5},
                   {"vocab_size_per_layer_input", 64}});
  config.update(changes);
  return config;
}

int unit_of(const ModelSpec& model, const std::string& name) {
  const auto found = std::ranges::find(model.units, name, &UnitSpec::name);
  return found == model.units.end() ? -1 : static_cast<int>(found - model.units.begin());
}

TEST(Gemma4, TheLastLayersReadKeysOfEarlierOnes) {
  const ModelSpec model = make_model_spec(like_e4b().dump());
  const auto keys_of = [&](int number) {
    return model.keys_of(model.units.at(unit_of(model, "llm.layers." + std::to_string(number))))
        .name;
  };
  EXPECT_EQ(keys_of(0), "llm.layers.0");
  EXPECT_EQ(keys_of(1), "llm.layers.1.keys");
  EXPECT_EQ(keys_of(2), "llm.layers.2.keys");
  EXPECT_EQ(keys_of(3), "llm.layers.1.keys");
  EXPECT_EQ(keys_of(4), "llm.layers.2.keys");
  EXPECT_EQ(keys_of(5), "llm.layers.1.keys");
  const auto has = [&](const std::string& name) {
    return model.param_index("model.layers." + name + ".weight") >= 0;
  };
  EXPECT_TRUE(has("2.self_attn.k_proj") && has("2.self_attn.v_proj") && has("2.self_attn.k_norm"));
  EXPECT_FALSE(has("3.self_attn.k_proj") || has("4.self_attn.v_proj") || has("5.self_attn.k_norm"));
  EXPECT_TRUE(has("5.self_attn.q_norm"));
  const UnitSpec& keys = model.units.at(unit_of(model, "llm.layers.2.keys"));
  EXPECT_EQ(model.output_width(keys, 1), 2 * 2 * 6);
  EXPECT_EQ(model.output_width(keys, 2), 2 * 6);
  EXPECT_EQ(model.output_width(keys, 4), 2 * 6);
  const UnitSpec& block = model.units.at(unit_of(model, "llm.layers.2"));
  EXPECT_EQ(keys.params.front(), block.params.front());
}

TEST(Gemma4, LayersThatReadKeysMayHaveWideMlps) {
  const auto width = [](const nlohmann::json& config, const char* number) {
    const ModelSpec model = make_model_spec(config.dump());
    const std::string name = std::string("model.layers.") + number + ".mlp.up_proj.weight";
    return model.params.at(static_cast<size_t>(model.param_index(name))).shape[0];
  };
  EXPECT_EQ(width(like_e4b(), "2"), 40);
  EXPECT_EQ(width(like_e4b(), "3"), 80);
  EXPECT_EQ(width(like_e4b({{"use_double_wide_mlp", false}}), "3"), 40);
  EXPECT_EQ(width(like_e4b({{"num_kv_shared_layers", 0}}), "3"), 40);
}

/// Blocks have parts of one table and of one linear, and one norm.
TEST(Gemma4, EachLayerHasAnInputOfItsOwn) {
  const ModelSpec model = make_model_spec(like_e4b().dump());
  const UnitSpec& block = model.units.at(unit_of(model, "llm.layers.4"));
  const auto param = [&](const char* role) {
    return model.params.at(static_cast<size_t>(model.params_of(block, role).front()));
  };
  const ParamSpec table = param("input_table"), context = param("input_context.weight");
  EXPECT_EQ(table.name, "model.embed_tokens_per_layer.weight");
  EXPECT_EQ(table.shape, (Shape{64, 5}));
  EXPECT_EQ(table.tensor_shape(), (Shape{64, 30}));
  EXPECT_EQ(table.part.begin, 20);
  EXPECT_EQ(context.name, "model.per_layer_model_projection.weight");
  EXPECT_EQ(context.tensor_shape(), (Shape{30, 24}));
  EXPECT_EQ(context.part.begin, 20);
  EXPECT_EQ(param("input_norm.weight").name, "model.per_layer_projection_norm.weight");
  EXPECT_EQ(block.inputs.at(block.input_read_as(UnitReads::Embedded)).unit,
            unit_of(model, "llm.embed"));
  const UnitSpec& first = model.units.at(unit_of(model, "llm.layers.0"));
  EXPECT_EQ(model.params_of(first, "input_norm.weight"),
            model.params_of(block, "input_norm.weight"));
}

TEST(Gemma4, IsReadWithoutTowersFromACompositeConfig) {
  const nlohmann::json config{
      {"model_type", "gemma4"}, {"text_config", config_with()}, {"vision_config", nullptr}};
  const ModelSpec model = make_model_spec(config.dump());
  EXPECT_GE(model.param_index("model.language_model.layers.1.self_attn.k_proj.weight"), 0);
  EXPECT_TRUE(model.notes.empty());
}

TEST(Gemma4, RefusesWhatIsNotBuilt) {
  const auto refused = [](const nlohmann::json& changes) {
    return refusal_of(config_with(changes));
  };
  expect_refusal(refused({{"hidden_size_per_layer_input", 8}, {"vocab_size_per_layer_input", 60}}),
                 "vocab_size_per_layer_input = 60; allowed: vocab_size = 61 or more");
  expect_refusal(refused({{"hidden_size_per_layer_input", 8}, {"pad_token_id", 262144}}),
                 "pad_token_id = 262144; allowed: an id below vocab_size_per_layer_input = 262144");
  expect_refusal(refused({{"num_kv_shared_layers", 2}}),
                 "num_kv_shared_layers = 2; allowed: 0 to 1, fewer than num_hidden_layers");
  expect_refusal(
      refused({{"num_kv_shared_layers", 1}}),
      "num_kv_shared_layers = 1; allowed: fewer: a layer before the last ones must be of "
      "full_attention");
  expect_refusal(refused({{"enable_moe_block", true}}),
                 "num_experts = nothing; allowed: 1 or more");
  expect_refusal(refused({{"enable_moe_block", true},
                          {"num_experts", 4},
                          {"top_k_experts", 5},
                          {"moe_intermediate_size", 12}}),
                 "top_k_experts = 5; allowed: at most num_experts = 4");
  expect_refusal(refused({{"use_bidirectional_attention", "all"}}),
                 "use_bidirectional_attention = \"all\"; allowed: null, \"vision\"");
  EXPECT_EQ(refused({{"use_bidirectional_attention", "vision"}}), "accepted");
  expect_refusal(refused({{"layer_types", {kFull, kSliding}}}), "full_attention as the last");
  expect_refusal(refused({{"global_head_dim", 7}}), "global_head_dim = 7; allowed: an even number");
  expect_refusal(refused({{"num_global_key_value_heads", 3}}),
                 "num_global_key_value_heads = 3; allowed: a divisor of num_attention_heads = 4");
  const auto positions = [&](const nlohmann::json& full) {
    return refused({{"rope_parameters", {{kSliding, {{"rope_type", "default"}}}, {kFull, full}}}});
  };
  expect_refusal(positions({{"rope_type", "yarn"}}), "rope_type = yarn; allowed: default, propor");
  expect_refusal(positions({{"rope_type", "proportional"}, {"partial_rotary_factor", 1.5}}),
                 "partial_rotary_factor = 1.5");
  expect_refusal(positions({{"rope_type", "proportional"}, {"factor", 0}}), "above 0");
  expect_refusal(positions(nullptr), "an object with rope_type and rope_theta");
}

}  // namespace
}  // namespace zea::test_gemma4
