// SPDX-License-Identifier: Apache-2.0
// Families with mixtures of experts: their parameters, the layers that have experts, tp shards, and
// what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "layout/flat_layout.hpp"
#include "spec/param_rules.hpp"
#include "spec/param_shard.hpp"
#include "support/config_refusal.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::test_moe {
namespace {

nlohmann::json config_of(const std::string& family) {
  nlohmann::json config{
      {"model_type", family},   {"hidden_size", 32},        {"intermediate_size", 48},
      {"num_hidden_layers", 4}, {"vocab_size", 64},         {"num_attention_heads", 4},
      {"num_experts", 6},       {"num_experts_per_tok", 2}, {"num_key_value_heads", 4}};
  if (family.starts_with("qwen")) config["moe_intermediate_size"] = 12;
  if (family == "qwen2_moe") config["shared_expert_intermediate_size"] = 20;
  return config;
}

std::string with(nlohmann::json config, const nlohmann::json& changes) {
  config.update(changes);
  return config.dump();
}

std::vector<bool> sparse_layers(const ModelSpec& model) {
  std::vector<bool> are_sparse;
  for (const UnitSpec& unit : model.units)
    if (unit.kind == UnitKind::Block) are_sparse.push_back(unit.has("router.weight"));
  return are_sparse;
}

TEST(Moe, FilesHoldEachExpertAlone) {
  const ModelSpec qwen = make_model_spec(config_of("qwen3_moe").dump());
  const int gate = qwen.param_index("model.layers.3.mlp.experts.5.gate_proj.weight");
  ASSERT_GE(gate, 0);
  EXPECT_EQ(qwen.params[gate].shape, (Shape{12, 32}));
  EXPECT_EQ(qwen.params[gate + 1].name, "model.layers.3.mlp.experts.5.up_proj.weight");
  EXPECT_GE(qwen.param_index("model.layers.3.mlp.gate.weight"), 0);
  const ModelSpec mixtral = make_model_spec(config_of("mixtral").dump());
  const int down = mixtral.param_index("model.layers.0.block_sparse_moe.experts.0.w2.weight");
  ASSERT_GE(down, 0);
  EXPECT_EQ(mixtral.params[down].shape, (Shape{32, 48}));
  const ModelSpec shared = make_model_spec(config_of("qwen2_moe").dump());
  EXPECT_EQ(shared.params[shared.param_index("model.layers.0.mlp.shared_expert_gate.weight")].shape,
            (Shape{1, 32}));
}

TEST(Moe, ConfigsSayWhichLayersHaveExperts) {
  const auto layers = [](const nlohmann::json& changes) {
    return sparse_layers(make_model_spec(with(config_of("qwen3_moe"), changes)));
  };
  EXPECT_EQ(layers(nlohmann::json::object()), (std::vector{true, true, true, true}));
  EXPECT_EQ(layers({{"decoder_sparse_step", 2}}), (std::vector{false, true, false, true}));
  EXPECT_EQ(layers({{"mlp_only_layers", {0, 2}}}), (std::vector{false, true, false, true}));
  EXPECT_EQ(layers({{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}}),
            (std::vector{false, true, false, false}));
}

TEST(Moe, ATokenUsesItsExpertsAlone) {
  const ModelSpec model = make_model_spec(config_of("qwen3_moe").dump());
  EXPECT_EQ(model.num_parameters() - model.num_active_parameters(), 4 * 4 * 3 * 12 * 32);
  const ModelSpec dense = make_model_spec(testing::tiny_qwen2_vl_config());
  EXPECT_EQ(dense.num_active_parameters(), dense.num_parameters());
}

TEST(Moe, TpRanksShareTheColumnsOfEachExpert) {
  const ModelSpec model = make_model_spec(config_of("qwen3_moe").dump());
  const auto cut = [&](const std::string& name) {
    return param_shard_of(model.params[model.param_index("model.layers.0.mlp." + name)], 2);
  };
  EXPECT_EQ(cut("experts.1.up_proj.weight").shape, (Shape{6, 32}));
  EXPECT_EQ(cut("experts.1.down_proj.weight").shape, (Shape{32, 6}));
  EXPECT_TRUE(cut("gate.weight").of_heads);
  const ModelSpec stacked = make_model_spec(testing::tiny_qwen3_vl_moe_config());
  const int up = stacked.param_index("model.language_model.layers.0.mlp.experts.gate_up_proj");
  ASSERT_GE(up, 0);
  const ParamSpec& param = stacked.params[up];
  const ParamShard half = param_shard_of(param, 2);
  EXPECT_EQ(half.shape, (Shape{param.shape[0], param.shape[1], param.shape[2] / 2}));
  // Rank 1 has the second half of the gates and of the ups of each row.
  const int64_t columns = param.shape[2], quarter = columns / 4;
  const std::vector<PieceBox> boxes = boxes_of_piece(param, half, 1, 0, 2 * quarter);
  ASSERT_EQ(boxes.size(), 2U);
  EXPECT_EQ(boxes[0].extent.offset[2], quarter);
  EXPECT_EQ(boxes[1].extent.offset[2], 3 * quarter);
}

/// Every element of every expert is in one place of one rank.
TEST(Moe, EpRanksHaveExpertsOfTheirOwn) {
  for (const std::string& config :
       {config_of("qwen3_moe").dump(), testing::tiny_qwen3_vl_moe_config(),
        testing::with_gpt_oss(testing::tiny_llava_config(), 6)})
    for (const int ep : {2, 3})
      for (const int tp : {1, 2}) {
        const ModelSpec model = make_model_spec(config);
        std::vector<ParamShard> cuts;
        for (const ParamSpec& param : model.params) cuts.push_back(param_shard_of(param, tp));
        shard_experts(model, ep, tp, cuts);
        std::map<std::string, int64_t> held;
        int64_t listed = 0;
        for (const UnitSpec& unit : model.units)
          for (const std::vector<int>& experts : model.expert_params(unit))
            for (const int param : experts) {
              EXPECT_EQ(cuts[param].ep, ep);
              if (cuts[param].home > 0) continue;
              for (int piece = 0; piece < ep * tp; ++piece) {
                const int own = cuts[param].param_of(param, piece);
                const int64_t elements = num_elements(cuts[param].shape);
                for (const PieceBox& box :
                     boxes_of_piece(model.params[own], cuts[param], piece, 0, elements))
                  held[model.params[own].name] += box.extent.elements();
                listed += elements;
              }
            }
        int64_t all = 0;
        for (const auto& [name, elements] : held) {
          const ParamSpec& param = model.params[model.param_index(name)];
          const int holders = param.tp_sharding.dim < 0 ? tp : 1;
          EXPECT_EQ(elements, holders * num_elements(param.shape)) << name;
          all += elements;
        }
        EXPECT_EQ(all, listed);
        EXPECT_GT(all, 0);
      }
  const ModelSpec stacked = make_model_spec(testing::tiny_qwen3_vl_moe_config());
  const int up = stacked.param_index("model.language_model.layers.0.mlp.experts.gate_up_proj");
  std::vector<ParamShard> cuts;
  for (const ParamSpec& param : stacked.params) cuts.push_back(param_shard_of(param, 1));
  shard_experts(stacked, 3, 1, cuts);
  const std::vector<PieceBox> boxes = boxes_of_piece(stacked.params[up], cuts[up], 2, 0, 1);
  EXPECT_EQ(boxes.at(0).extent.offset, (Shape{4, 0, 0}));
}

TEST(Moe, ConfigsThatMakeNoModelAreRefused) {
  const auto expect = [](const char* family, const nlohmann::json& changes, const char* sentence) {
    nlohmann::json config = config_of(family);
    config.update(changes);
    testing::expect_refusal(testing::refusal_of(config), sentence);
  };
  expect("qwen3_moe", {{"num_experts_per_tok", 7}},
         "config.num_experts_per_tok = 7; allowed: at most");
  expect("qwen3_moe", {{"num_local_experts", 5}},
         "config.num_experts = 6; allowed: num_local_experts = 5");
  expect("qwen3_moe", {{"num_experts", 1 << 17}},
         "config.num_experts = 131072; allowed: 1 to 32768");
  expect("qwen3_moe", {{"mlp_only_layers", "all"}}, "config.mlp_only_layers");
  expect("olmoe", {{"clip_qkv", 8.0}}, "clipping is not built yet");
  expect("olmoe", {{"num_key_value_heads", 2}}, "norms of fewer keys are not built yet");
  expect("mixtral", {{"router_jitter_noise", 0.1}}, "config.router_jitter_noise");
}

nlohmann::json glm_config() {
  nlohmann::json config = config_of("glm4_moe");
  config.erase("num_experts");
  config.update({{"n_routed_experts", 8}, {"moe_intermediate_size", 12}, {"n_shared_experts", 2}});
  return config;
}

TEST(Moe, GlmHasDenseLayersBiasesOfChoicesAndSharedExperts) {
  const ModelSpec model = make_model_spec(with(glm_config(), {{"first_k_dense_replace", 3}}));
  EXPECT_EQ(sparse_layers(model), (std::vector{false, false, false, true}));
  const auto param = [&](const std::string& name) {
    return model.params.at(model.param_index("model.layers.3.mlp." + name));
  };
  EXPECT_EQ(param("shared_experts.up_proj.weight").shape, (Shape{24, 32}));
  EXPECT_EQ(model.param_index("model.layers.3.mlp.shared_expert_gate.weight"), -1);
  const ParamSpec bias = param("gate.e_score_correction_bias");
  EXPECT_EQ(bias.shape, (Shape{8}));
  EXPECT_TRUE(bias.is_state);
  EXPECT_FALSE(bias.trainable);
  const RouterSpec router = *model.decoder.block.mlps.at(1).router;
  EXPECT_EQ(router.scores, RouterScores::Sigmoid);
  EXPECT_TRUE(router.norm_topk_prob);
  EXPECT_EQ(model.decoder.block.attention().rope.share, 0.5);
}

nlohmann::json gpt_oss_config() {
  nlohmann::json config = config_of("gpt_oss");
  config.erase("num_experts");
  config.update({{"num_local_experts", 6}, {"head_dim", 8}, {"sliding_window", 3}});
  return config;
}

TEST(Moe, GptOssHasSinksWindowsAndBiasesOfExperts) {
  const ModelSpec model = make_model_spec(gpt_oss_config().dump());
  const auto param = [&](const std::string& name) {
    return model.params.at(model.param_index("model.layers.1." + name));
  };
  EXPECT_EQ(param("self_attn.sinks").shape, (Shape{4}));
  EXPECT_EQ(param("mlp.experts.gate_up_proj").shape, (Shape{6, 32, 96}));
  EXPECT_EQ(param("mlp.experts.gate_up_proj_bias").shape, (Shape{6, 96}));
  EXPECT_EQ(param("mlp.experts.down_proj_bias").shape, (Shape{6, 32}));
  EXPECT_EQ(param("mlp.router.bias").shape, (Shape{6}));
  for (const char* name : {"mlp.experts.gate_up_proj_bias", "mlp.router.bias", "self_attn.sinks"})
    EXPECT_FALSE(param(name).decays()) << name;
  EXPECT_TRUE(param("mlp.experts.down_proj").decays());
  // A tp rank has neighboring columns, of gates and of what these scale; and biases of the sum
  // over tp ranks are whole.
  const ParamShard half = param_shard_of(param("mlp.experts.gate_up_proj"), 2);
  EXPECT_EQ(half.shape, (Shape{6, 32, 48}));
  EXPECT_EQ(half.fused_sections, 1);
  EXPECT_EQ(param_shard_of(param("mlp.experts.down_proj_bias"), 2).shape, (Shape{6, 32}));
  EXPECT_EQ(param_shard_of(param("self_attn.sinks"), 2).shape, (Shape{2}));
  std::vector<int64_t> windows;
  for (const UnitSpec& unit : model.units)
    if (unit.kind == UnitKind::Block) windows.push_back(model.window(unit));
  EXPECT_EQ(windows, (std::vector<int64_t>{3, 0, 3, 0}));
  const RopeConfig& rope = model.decoder.block.attention().rope;
  EXPECT_EQ(rope.type, RopeType::Yarn);
  EXPECT_FALSE(rope.truncate);
  EXPECT_EQ(rope.factor, 32);
}

TEST(Moe, GptOssIsRefusedWhereTransformersHasAnotherGate) {
  nlohmann::json config = gpt_oss_config();
  config["swiglu_limit"] = 5.0;
  testing::expect_refusal(testing::refusal_of(config), "config.swiglu_limit = 5");
  config = gpt_oss_config();
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  testing::expect_refusal(testing::refusal_of(config), "the weights are quantized");
}

nlohmann::json deepseek_config() {
  nlohmann::json config = glm_config();
  config.update({{"model_type", "deepseek_v3"},
                 {"q_lora_rank", 10},
                 {"kv_lora_rank", 9},
                 {"qk_nope_head_dim", 6},
                 {"qk_rope_head_dim", 4},
                 {"v_head_dim", 7},
                 {"n_group", 4},
                 {"topk_group", 2}});
  return config;
}

TEST(Moe, DeepseekMakesKeysAndValuesOfALatent) {
  const ModelSpec model = make_model_spec(deepseek_config().dump());
  EXPECT_EQ(sparse_layers(model), (std::vector{false, false, false, true}));
  const auto param = [&](const std::string& name) {
    return model.params.at(model.param_index("model.layers.0.self_attn." + name));
  };
  EXPECT_EQ(param("q_a_proj.weight").shape, (Shape{10, 32}));
  EXPECT_EQ(param("q_b_proj.weight").shape, (Shape{40, 10}));
  EXPECT_EQ(param("kv_a_proj_with_mqa.weight").shape, (Shape{13, 32}));
  EXPECT_EQ(param("kv_b_proj.weight").shape, (Shape{52, 9}));
  EXPECT_EQ(param("o_proj.weight").shape, (Shape{32, 28}));
  EXPECT_EQ(param_shard_of(param("kv_a_proj_with_mqa.weight"), 2).shape, (Shape{13, 32}));
  EXPECT_EQ(param_shard_of(param("kv_b_proj.weight"), 2).shape, (Shape{26, 9}));
  const AttentionSpec& attention = model.decoder.block.attention();
  EXPECT_EQ(attention.heads.dim, 10);
  EXPECT_EQ(attention.value_dim(), 7);
  EXPECT_EQ(attention.rope.rotating_pairs(10), 2);
  EXPECT_DOUBLE_EQ(attention.scores.scale, 1 / std::sqrt(10.0));
}

/// Any share of a head's coordinates is that of so many.
TEST(Moe, DeepseekRotatesAllCoordinatesThatItSays) {
  nlohmann::json config = deepseek_config();
  for (int64_t plain = 1; plain < 200; ++plain) {
    config.update({{"qk_nope_head_dim", plain}, {"qk_rope_head_dim", 64}, {"v_head_dim", 128}});
    const AttentionSpec& attention = make_model_spec(config.dump()).decoder.block.attention();
    ASSERT_EQ(attention.rope.pairs(attention.heads.dim), 32) << plain;
  }
}

TEST(Moe, DeepseekScalesScoresWithItsPositions) {
  nlohmann::json config = deepseek_config();
  config["rope_scaling"] = {{"rope_type", "yarn"},
                            {"factor", 40},
                            {"mscale", 1.0},
                            {"mscale_all_dim", 1.0},
                            {"original_max_position_embeddings", 64}};
  const AttentionSpec attention = make_model_spec(config.dump()).decoder.block.attention();
  const double mscale = 0.1 * std::log(40.0) + 1;
  EXPECT_DOUBLE_EQ(attention.scores.scale, mscale * mscale / std::sqrt(10.0));
  EXPECT_DOUBLE_EQ(attention.rope.attention_factor, 1);
}

TEST(Moe, DeepseekRefusesOtherHeadsAndRouters) {
  const auto expect = [](const nlohmann::json& changes, const char* sentence) {
    nlohmann::json config = deepseek_config();
    config.update(changes);
    testing::expect_refusal(testing::refusal_of(config), sentence);
  };
  expect({{"num_key_value_heads", 2}}, "config.num_key_value_heads = 2; allowed: num_attention");
  expect({{"head_dim", 8}}, "config.head_dim = 8; allowed: qk_rope_head_dim = 4");
  expect({{"qk_rope_head_dim", 3}}, "config.head_dim = 3; allowed: an even number");
  expect({{"scoring_func", "softmax"}}, "config.scoring_func");
  expect({{"topk_method", "greedy"}}, "config.topk_method");
  expect({{"moe_layer_freq", 2}}, "config.moe_layer_freq = 2");
}

TEST(Moe, StatesHaveBuffersOfTheirOwn) {
  const ModelSpec model = make_model_spec(glm_config().dump());
  int states = 0;
  for (const FlatBuffer& buffer : make_flat_layout(model))
    for (const FlatParam& member : buffer.params) {
      EXPECT_EQ(buffer.is_state, model.params[member.param].is_state) << buffer.name;
      states += buffer.is_state;
    }
  EXPECT_EQ(states, 3);
}

TEST(Moe, GroupsThatMakeNoRouterAreRefused) {
  const auto expect = [](const nlohmann::json& changes, const char* sentence) {
    nlohmann::json config = glm_config();
    config.update(changes);
    testing::expect_refusal(testing::refusal_of(config), sentence);
  };
  expect({{"n_group", 3}}, "n_group");
  expect({{"n_group", 8}}, "config.n_group = 8; allowed: groups of 2 of the 8 experts, or more");
  expect({{"n_group", 2}, {"topk_group", 3}}, "config.topk_group = 3; allowed: 1 to n_group = 2");
  expect({{"n_group", 4}, {"num_experts_per_tok", 3}},
         "config.num_experts_per_tok = 3; allowed: at most the experts of topk_group groups, 2");
  expect({{"n_shared_experts", 0}}, "config.n_shared_experts = 0");
  expect({{"n_routed_experts", 1 << 20}}, "config.n_routed_experts = 1048576");
  expect({{"scoring_func", "softmax"}}, "scoring_func");
}

TEST(Moe, ConfigsAskForTheLossThatBalancesExperts) {
  const auto loss = [](const char* family, const nlohmann::json& changes) {
    return make_model_spec(with(config_of(family), changes)).decoder.router_aux_loss;
  };
  EXPECT_EQ(loss("qwen3_moe", nlohmann::json::object()), 0);
  EXPECT_EQ(loss("qwen3_moe", {{"router_aux_loss_coef", 0.5}}), 0);
  EXPECT_EQ(loss("qwen3_moe", {{"output_router_logits", true}}), 1e-3);
  EXPECT_EQ(loss("olmoe", {{"output_router_logits", true}}), 1e-2);
  EXPECT_EQ(loss("mixtral", {{"output_router_logits", true}, {"router_aux_loss_coef", 0.5}}), 0.5);
  nlohmann::json composite =
      nlohmann::json::parse(testing::with_experts(testing::tiny_llava_config()));
  composite["text_config"]["output_router_logits"] = true;
  const ModelSpec model = make_model_spec(composite.dump());
  EXPECT_EQ(model.decoder.router_aux_loss, 0);
  ASSERT_EQ(model.notes.size(), 1U);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "output_router_logits has no effect", model.notes[0]);
}

/// Biases of experts are a vector of each, whose stack is no matrix.
TEST(Moe, MuonTakesTheMatricesOfStackedExperts) {
  OptimOptions optim;
  optim.kind = "muon";
  std::vector<std::string> faults;
  const ModelSpec model = make_model_spec(config_of("gpt_oss").dump());
  const std::vector<ParamRule> rules = make_param_rules(model, optim, faults);
  EXPECT_TRUE(faults.empty());
  const auto is_taken = [&](const std::string& name) {
    return rules[model.param_index("model.layers.0.mlp." + name)].orthogonalizes;
  };
  for (const char* name : {"experts.gate_up_proj", "experts.down_proj", "router.weight"})
    EXPECT_TRUE(is_taken(name)) << name;
  for (const char* name : {"experts.gate_up_proj_bias", "experts.down_proj_bias", "router.bias"})
    EXPECT_FALSE(is_taken(name)) << name;
}

}  // namespace
}  // namespace zea::test_moe
