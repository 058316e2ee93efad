// SPDX-License-Identifier: Apache-2.0
// Qwen3-Next and Qwen3.5 as specs: names and shapes, layers, carried tensors, experts in both
// spellings of files, and refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "spec/param_shard.hpp"
#include "support/config_refusal.hpp"
#include "support/tiny_qwen3_next.hpp"

namespace zea::test_qwen3_next {
namespace {

using testing::expect_refusal;
using testing::refusal_of;
using testing::tiny_hybrid_config;
using testing::tiny_qwen3_5_config;

const ParamSpec& param(const ModelSpec& model, const std::string& name) {
  return model.params.at(static_cast<size_t>(model.param_index(name)));
}

nlohmann::json with(const std::string& config, const nlohmann::json& changes) {
  nlohmann::json changed = nlohmann::json::parse(config);
  changed.update(changes);
  return changed;
}

nlohmann::json hybrid_with(const std::string& family, const nlohmann::json& changes) {
  return with(tiny_hybrid_config(family), changes);
}

TEST(Qwen3Next, HasTheNamesAndShapesOfItsFiles) {
  const ModelSpec next = make_model_spec(tiny_hybrid_config("qwen3_next"));
  const auto shape = [&](const std::string& name) {
    return param(next, "model.layers." + name).tensor_shape();
  };
  EXPECT_EQ(shape("0.linear_attn.in_proj_qkvz.weight"), (Shape{104, 24}));
  EXPECT_EQ(shape("0.linear_attn.in_proj_ba.weight"), (Shape{8, 24}));
  EXPECT_EQ(shape("0.linear_attn.conv1d.weight"), (Shape{64, 1, 4}));
  EXPECT_EQ(shape("0.linear_attn.norm.weight"), Shape{10});
  EXPECT_EQ(shape("1.self_attn.q_proj.weight"), (Shape{128, 24}));
  EXPECT_EQ(shape("1.self_attn.o_proj.weight"), (Shape{24, 64}));
  EXPECT_EQ(shape("2.mlp.experts.5.gate_proj.weight"), (Shape{12, 24}));
  EXPECT_EQ(shape("2.mlp.shared_expert_gate.weight"), (Shape{1, 24}));
  const ModelSpec dense = make_model_spec(tiny_qwen3_5_config());
  const auto dense_shape = [&](const std::string& name) {
    return param(dense, "model." + name).tensor_shape();
  };
  EXPECT_EQ(dense_shape("language_model.layers.2.linear_attn.in_proj_qkv.weight"), (Shape{64, 24}));
  EXPECT_EQ(dense_shape("language_model.layers.2.linear_attn.in_proj_z.weight"), (Shape{40, 24}));
  EXPECT_EQ(dense_shape("language_model.layers.2.linear_attn.A_log"), Shape{4});
  EXPECT_EQ(dense_shape("visual.merger.linear_fc2.weight"), (Shape{24, 64}));
  EXPECT_EQ(dense.param_index("model.visual.deepstack_merger_list.0.norm.weight"), -1);
}

TEST(Qwen3Next, NormsAddTheirWeightsTo1ButForOutputsOfTheDeltaRule) {
  const ModelSpec model = make_model_spec(tiny_qwen3_5_config());
  for (const ParamSpec& one : model.params) {
    if (one.module != kDecoder || !one.name.ends_with("norm.weight")) continue;
    const bool is_plain = one.name.ends_with("linear_attn.norm.weight");
    EXPECT_EQ(one.init, is_plain ? Init::Ones : Init::Zeros) << one.name;
  }
  EXPECT_EQ(model.decoder.block.norm.offset, 1);
}

TEST(Qwen3Next, GatesLieBehindTheirQueries) {
  const ModelSpec model = make_model_spec(tiny_hybrid_config("qwen3_5_text"));
  const ParamSpec& query = param(model, "model.layers.1.self_attn.q_proj.weight");
  // Rank 1 of 2 has the last two heads and their gates.
  const ParamShard half = param_shard_of(query, 2);
  EXPECT_EQ(half.shape, (Shape{64, 24}));
  const std::vector<PieceBox> boxes = boxes_of_piece(query, half, 1, 0, 64 * 24);
  ASSERT_EQ(boxes.size(), 1U);
  EXPECT_EQ(boxes[0].extent.offset, (Shape{64, 0}));
}

TEST(Qwen3Next, ConfigsSayWhichLayersHaveAttention) {
  const auto layers = [](const nlohmann::json& changes) {
    const ModelSpec model = make_model_spec(hybrid_with("qwen3_5_text", changes).dump());
    std::vector<bool> attend;
    for (const UnitSpec& unit : model.units)
      if (unit.kind == UnitKind::Block) attend.push_back(unit.has("qkv.weight"));
    return attend;
  };
  EXPECT_EQ(layers(nlohmann::json::object()), (std::vector{false, true, false}));
  EXPECT_EQ(layers({{"full_attention_interval", 1}}), (std::vector{true, true, true}));
  EXPECT_EQ(layers({{"full_attention_interval", 4}}), (std::vector{false, false, false}));
  EXPECT_EQ(layers({{"layer_types", {"full_attention", "linear_attention", "linear_attention"}}}),
            (std::vector{true, false, false}));
}

TEST(Qwen3Next, AQuarterOfAHeadRotatesWhereNothingIsSaid) {
  nlohmann::json config = nlohmann::json::parse(tiny_hybrid_config("qwen3_next"));
  config.erase("partial_rotary_factor");
  EXPECT_EQ(make_model_spec(config.dump()).decoder.block.attention().rope.pairs(16), 2);
  config["rope_parameters"] = {{"rope_theta", 1e4}, {"partial_rotary_factor", 1.0}};
  EXPECT_EQ(make_model_spec(config.dump()).decoder.block.attention().rope.pairs(16), 8);
  const ModelSpec seeing = make_model_spec(tiny_qwen3_5_config());
  const std::vector<RotaryPair>& turns = seeing.decoder.block.attention().rope.rotary_pairs;
  EXPECT_EQ(turns, interleaved_pairs({2, 1, 1}));
}

TEST(Qwen3Next, FilesStackExpertsOrSplitThem) {
  const std::string config = tiny_qwen3_5_config("qwen3_5_moe");
  const ModelSpec stacked = make_model_spec(config);
  const std::string experts = "model.language_model.layers.0.mlp.experts.";
  const ParamSpec &up = param(stacked, experts + "gate_up_proj"),
                  &down = param(stacked, experts + "down_proj");
  EXPECT_EQ(up.shape, (Shape{6, 24, 24}));
  EXPECT_EQ(down.shape, (Shape{6, 24, 12}));
  EXPECT_EQ(param_shard_of(up, 2).shape, (Shape{6, 12, 24}));
  EXPECT_EQ(param_shard_of(down, 2).shape, (Shape{6, 24, 6}));
  // Rank 1 has the second half of the gates and of the ups of each expert.
  const std::vector<PieceBox> boxes = boxes_of_piece(up, param_shard_of(up, 2), 1, 0, 12 * 24);
  ASSERT_EQ(boxes.size(), 2U);
  EXPECT_EQ(boxes[0].extent.offset, (Shape{0, 6, 0}));
  EXPECT_EQ(boxes[1].extent.offset, (Shape{0, 18, 0}));
  const ModelSpec split =
      make_model_spec(with(config, {{kWeightsFiles, {{"splits_experts", true}}}}).dump());
  EXPECT_EQ(param(split, experts + "5.up_proj.weight").shape, (Shape{12, 24}));
  EXPECT_EQ(split.num_parameters(), stacked.num_parameters());
  EXPECT_EQ(split.num_active_parameters(), stacked.num_active_parameters());
}

TEST(Qwen3Next, TensorsOfMoreTokensAreCarried) {
  const std::string config = tiny_qwen3_5_config();
  const auto carrying = [&](const nlohmann::json& tensors) {
    return with(config, {{kWeightsFiles, {{"carried", tensors}}}});
  };
  const ModelSpec plain = make_model_spec(config);
  const ModelSpec model = make_model_spec(carrying({{"mtp.fc.weight", {24, 48}}}).dump());
  const ParamSpec& carried = param(model, "mtp.fc.weight");
  EXPECT_EQ(carried.shape, (Shape{24, 48}));
  EXPECT_FALSE(carried.used || carried.trainable);
  EXPECT_EQ(model.units.size(), plain.units.size());
  EXPECT_EQ(model.num_active_parameters(), plain.num_active_parameters());
  expect_refusal(refusal_of(carrying({{"mtp.fc.weight", {24, 0}}})), "lengths of 1 or more");
  expect_refusal(refusal_of(carrying({{"lm_head.weight", {1}}})), "a parameter of the model");
}

TEST(Qwen3Next, TheHeadOfMoreTokensTrainsOnRequest) {
  const Trainable trains{.mtp_loss = 0.1};
  for (const std::string& config : {tiny_hybrid_config("qwen3_5_text"), tiny_qwen3_5_config()}) {
    const ModelSpec plain = make_model_spec(config), model = make_model_spec(config, trains);
    ASSERT_EQ(model.units.size(), plain.units.size() + 1);
    const UnitSpec &block = model.units[model.units.size() - 2], &head = model.units.back();
    EXPECT_TRUE(block.is_mtp && block.has("qkv.weight"));
    EXPECT_EQ(head.inputs.size(), 2U);
    EXPECT_TRUE(head.inputs[1].optional);
    EXPECT_EQ(param(model, "mtp.fc.weight").shape, (Shape{24, 48}));
    EXPECT_TRUE(param(model, "mtp.layers.0.mlp.up_proj.weight").trainable);
    // Models that do not train the head have its tensors, and those that do have each once.
    const std::string carrying = with_carried_head(config, model);
    EXPECT_EQ(make_model_spec(carrying).params.size(), model.params.size());
    EXPECT_EQ(make_model_spec(carrying, trains).params.size(), model.params.size());
    EXPECT_EQ(with_carried_head(config, plain), config);
  }
  const ModelSpec experts = make_model_spec(tiny_hybrid_config("qwen3_next"), trains);
  EXPECT_EQ(experts.decoder.mtp_loss, 0);
}

TEST(Qwen3Next, RefusesWhatIsNotBuilt) {
  const auto refused = [](const std::string& family, const nlohmann::json& changes) {
    return refusal_of(hybrid_with(family, changes));
  };
  expect_refusal(refused("qwen3_next", {{"attn_output_gate", false}}), "attn_output_gate = false");
  expect_refusal(refused("qwen3_next", {{"layer_types", {"mamba", "mamba", "mamba"}}}),
                 "layer_types = mamba; allowed: linear_attention, full_attention");
  expect_refusal(refused("qwen3_next", {{"layer_types", {"full_attention"}}}),
                 "one for each of num_hidden_layers = 3");
  expect_refusal(refused("qwen3_5_text", {{"linear_num_value_heads", 5}}),
                 "a divisor of linear_num_value_heads = 5");
  expect_refusal(refused("qwen3_5_text", {{"output_gate_type", "sigmoid"}}), "output_gate_type");
  expect_refusal(refused("qwen3_5_moe_text", {{"mlp_only_layers", {0}}}), "[] in this family");
  nlohmann::json deep = nlohmann::json::parse(tiny_qwen3_5_config());
  deep["vision_config"]["deepstack_visual_indexes"] = {0};
  expect_refusal(refusal_of(deep), "deepstack_visual_indexes = [0]; allowed: [] in this family");
}

}  // namespace
}  // namespace zea::test_qwen3_next
