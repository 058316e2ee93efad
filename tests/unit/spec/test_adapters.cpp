// SPDX-License-Identifier: Apache-2.0
#include "spec/adapters.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.hpp"
#include "schedule/plan.hpp"
#include "schedule/unit_cost.hpp"
#include "spec/param_shard.hpp"
#include "support/measured_models.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_adapters {
namespace {

ModelSpec with_lora(const std::string& config, const std::string& module, const LoraOptions& lora) {
  return make_model_spec(with_adapters(config, module, lora));
}

const ParamSpec& param(const ModelSpec& model, const std::string& name) {
  const int index = model.param_index(name);
  if (index < 0) throw std::runtime_error("no parameter " + name);
  return model.params[index];
}

std::vector<std::string> trained(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const ParamSpec& one : model.params)
    if (one.trainable) names.push_back(one.name);
  return names;
}

std::string refusal(const std::string& module, const LoraOptions& lora) {
  try {
    with_lora(tiny_llava_config(), module, lora);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Adapters, StandBesideTheirLinearsAndTrainInPlaceOfTheModule) {
  const ModelSpec plain = make_model_spec(tiny_llava_config());
  const ModelSpec model = with_lora(tiny_llava_config(), "llm", {.targets = {"q_proj"}, .rank = 3});

  const std::string q = "language_model.model.layers.0.self_attn.q_proj.";
  const ParamSpec& base = param(model, q + "weight");
  EXPECT_EQ(param(model, q + "lora_A.weight").shape, (Shape{3, base.shape[1]}));
  EXPECT_EQ(param(model, q + "lora_B.weight").shape, (Shape{base.shape[0], 3}));
  for (const ParamSpec& one : model.params)
    if (one.module == "llm") {
      EXPECT_EQ(one.trainable, one.name.find(".lora_") != std::string::npos) << one.name;
    }
  EXPECT_EQ(plain.params.size() + 2 * model.decoder.layers, model.params.size());
  EXPECT_TRUE(param(model, "multi_modal_projector.linear_1.weight").trainable);
}

/// The linear of per-layer inputs is split over blocks, and files have one A and one B of it.
TEST(Adapters, BlocksWithPartsOfALinearShareA) {
  const ModelSpec model = with_lora(with_gemma4_text(tiny_llava_config(), {.is_like_e4b = true}),
                                    "llm", {.targets = {"per_layer_model_projection"}, .rank = 3});
  const std::string linear = "language_model.model.per_layer_model_projection.";
  const int64_t hidden = model.decoder.block.hidden, width = model.decoder.block.layer_input.width;
  EXPECT_EQ(param(model, linear + "lora_A.weight").tensor_shape(), (Shape{3, hidden}));
  EXPECT_EQ(param(model, linear + "lora_B.weight").tensor_shape(),
            (Shape{width * model.decoder.layers, 3}));
  std::set<int> shared, own;
  for (const UnitSpec& unit : model.units)
    for (const Adapter& adapter : unit.adapters) {
      shared.insert(adapter.a);
      own.insert(adapter.b);
      EXPECT_EQ(model.params.at(static_cast<size_t>(adapter.b)).shape, (Shape{width, 3}));
    }
  EXPECT_EQ(shared.size(), 1u);
  EXPECT_EQ(std::ssize(own), model.decoder.layers);
}

/// PEFT adapts the nn.Linear inside clipped linears, and names it "linear".
TEST(Adapters, AdaptEveryLinearOfAConformer) {
  const std::string config = measured_model("gemma4 with audio").config;
  const ModelSpec model = with_lora(config, "audio", {.targets = {"*"}, .rank = 3});
  const std::string tower = "model.audio_tower.", layer = tower + "layers.0.";
  for (const char* part : {"q_proj", "k_proj", "v_proj", "post"})
    EXPECT_GE(model.param_index(layer + "self_attn." + part + ".linear.lora_A.weight"), 0) << part;
  EXPECT_EQ(param(model, layer + "self_attn.relative_k_proj.lora_B.weight").shape, (Shape{84, 3}));
  EXPECT_EQ(param(model, layer + "lconv1d.linear_start.linear.lora_B.weight").shape,
            (Shape{168, 3}));
  EXPECT_TRUE(param(model, tower + "output_proj.lora_A.weight").trainable);
  EXPECT_TRUE(
      param(model, tower + "subsample_conv_projection.input_proj_linear.lora_A.weight").trainable);
  EXPECT_FALSE(param(model, "model.embed_audio.embedding_projection.weight").trainable);

  // The last linear is in the projector's unit, but belongs to the encoder.
  const LoraOptions last{.targets = {"output_proj"}};
  Trainable kept;
  kept.encoders["audio"].projector = false;
  for (const bool trains : {false, true}) {
    kept.encoders["audio"].projector = trains;
    const ModelSpec own = make_model_spec(with_adapters(config, "audio", last), kept);
    EXPECT_TRUE(param(own, tower + "output_proj.lora_A.weight").trainable);
    EXPECT_FALSE(param(own, tower + "output_proj.weight").trainable);
    EXPECT_FALSE(param(own, layer + "self_attn.post.linear.weight").trainable);
    EXPECT_EQ(param(own, "model.embed_audio.embedding_projection.weight").trainable, trains);
  }

  const auto refused = [&](const LoraOptions& lora) -> std::string {
    try {
      with_lora(config, "audio", lora);
    } catch (const PlanError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(refused({.targets = {"q_proj"}}).find("layers.*.self_attn.q_proj.linear, "),
            std::string::npos);
  EXPECT_NE(refused({.targets = {"relative_k_proj"}, .dropout = 0.1})
                .find("audio.lora.dropout = 0.1, but model.audio_tower.layers.*.self_attn."
                      "relative_k_proj reads relative positions, which have no dropout"),
            std::string::npos);
  EXPECT_EQ(refused({.targets = {"post.linear"}, .dropout = 0.1}), "accepted");
}

TEST(Adapters, StandBesideLinearsOfLatents) {
  const std::string config = with_latent_attention(tiny_llava_config());
  const std::string layer = "language_model.model.layers.0.self_attn.";
  const ModelSpec model = with_lora(config, "llm", {.targets = {"q_a_proj", "o_proj"}, .rank = 3});
  EXPECT_EQ(param(model, layer + "q_a_proj.lora_B.weight").shape, (Shape{10, 3}));
  EXPECT_LT(param(model, layer + "q_a_proj.lora_B.weight").tp_sharding.dim, 0);
  const ModelSpec of_heads = with_lora(config, "llm", {.targets = {"kv_b_proj"}, .rank = 3});
  EXPECT_EQ(param(of_heads, layer + "kv_b_proj.lora_B.weight").tp_sharding.dim, 0);
  const auto keeps_latents = [](const ModelSpec& of) {
    const auto unit = std::ranges::find(of.units, "llm.layers.0", &UnitSpec::name);
    return of.caches_latents(*unit);
  };
  EXPECT_TRUE(keeps_latents(model));
  EXPECT_FALSE(keeps_latents(of_heads));
}

TEST(Adapters, StandBesideExperts) {
  const std::string config = with_experts(tiny_llava_config(), 4);
  const std::string layer = "language_model.model.layers.0.mlp.";
  const ModelSpec each = with_lora(config, "llm", {.targets = {"gate_proj", "gate"}, .rank = 3});
  EXPECT_EQ(param(each, layer + "experts.3.gate_proj.lora_A.weight").shape, (Shape{3, 24}));
  EXPECT_EQ(param(each, layer + "experts.3.gate_proj.lora_B.weight").shape, (Shape{16, 3}));
  EXPECT_EQ(param(each, layer + "shared_expert.gate_proj.lora_B.weight").tp_sharding.dim, 0);
  EXPECT_EQ(param(each, layer + "gate.lora_B.weight").shape, (Shape{4, 3}));
  EXPECT_LT(each.param_index(layer + "experts.3.up_proj.lora_A.weight"), 0);

  // transformers runs the linears of all experts as two tensors.
  const ModelSpec stacks =
      with_lora(config, "llm", {.targets = {"gate_up_proj", "experts.down_proj"}, .rank = 3});
  EXPECT_EQ(param(stacks, layer + "experts.gate_up_proj.lora_A.weight").shape, (Shape{4, 3, 24}));
  const ParamSpec& up = param(stacks, layer + "experts.gate_up_proj.lora_B.weight");
  EXPECT_EQ(up.shape, (Shape{4, 32, 3}));
  EXPECT_EQ(up.tp_sharding.fused_sections, 2);
  EXPECT_EQ(param(stacks, layer + "experts.down_proj.lora_A.weight").tp_sharding.dim, 2);
  std::vector<ParamShard> cuts;
  for (const ParamSpec& one : stacks.params) cuts.push_back(param_shard_of(one, 2));
  shard_experts(stacks, 2, 2, cuts);
  EXPECT_EQ(cuts[stacks.param_index(up.name)].shape, (Shape{2, 16, 3}));
}

TEST(Adapters, OfExpertsAreRefusedWhereTheyCannotBe) {
  const auto refused = [](const LoraOptions& lora) -> std::string {
    try {
      with_lora(with_experts(tiny_llava_config()), "llm", lora);
    } catch (const PlanError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(refused({.targets = {"experts.3.up_proj"}})
                .find("\"experts.3.up_proj\" matches 1 of the 5 experts of"),
            std::string::npos);
  EXPECT_NE(refused({.targets = {"up_proj"}, .rank_pattern = {"experts.2.up_proj = 4"}})
                .find("experts of a layer share both"),
            std::string::npos);
  EXPECT_NE(refused({.targets = {"up_proj", "gate_up_proj"}})
                .find("which are the same weights; leave one of them out"),
            std::string::npos);
  EXPECT_NE(refused({.targets = {"gate"}, .dropout = 0.1})
                .find("llm.lora.dropout = 0.1, but language_model.model.layers.*.mlp.gate is in "
                      "a mixture of experts, whose adapters have no dropout"),
            std::string::npos);
}

TEST(Adapters, BeginWithWhatChangesNothing) {
  const ModelSpec model = with_lora(tiny_llava_config(), "llm", {.targets = {"down_proj"}});
  const std::string down = "language_model.model.layers.1.mlp.down_proj.";
  const ParamSpec& a = param(model, down + "lora_A.weight");
  EXPECT_EQ(a.init, Init::Uniform);
  EXPECT_DOUBLE_EQ(a.std * a.std * static_cast<double>(a.shape[1]), 1);
  EXPECT_EQ(param(model, down + "lora_B.weight").init, Init::Zeros);
}

TEST(Adapters, OfAnEncoderLeaveItsProjectorUnlessTheyStandThere) {
  const ModelSpec tower = with_lora(tiny_llava_config(), "vision", {.targets = {"mlp.fc1"}});
  EXPECT_TRUE(param(tower, "multi_modal_projector.linear_1.weight").trainable);
  EXPECT_FALSE(param(tower, "vision_tower.encoder.layers.0.mlp.fc1.weight").trainable);

  // Whose last norm runs in the projector's unit.
  const ModelSpec ear =
      with_lora(tiny_llava_config({.audio = true}), "audio", {.targets = {"fc1"}});
  EXPECT_TRUE(param(ear, "audio_projector.linear_1.weight").trainable);
  EXPECT_FALSE(param(ear, "audio_tower.layer_norm.weight").trainable);

  const ModelSpec all = with_lora(tiny_llava_config(), "vision", {.targets = {"*"}});
  EXPECT_FALSE(param(all, "multi_modal_projector.linear_1.weight").trainable);
  EXPECT_TRUE(param(all, "multi_modal_projector.linear_1.lora_A.weight").trainable);

  const std::string config = with_adapters(tiny_llava_config(), "vision", {.targets = {"*"}});
  Trainable kept;
  kept.encoders["vision"].projector = false;
  const ModelSpec still = make_model_spec(config, kept);
  EXPECT_FALSE(param(still, "multi_modal_projector.linear_1.lora_A.weight").trainable);
}

TEST(Adapters, DoNotTrainWhereTheirModuleDoesNot) {
  const std::string config = with_adapters(tiny_llava_config(), "llm", {.targets = {"q_proj"}});
  for (const Trainable& trainable : {Trainable{.llm = false}, Trainable{.all_frozen = true}})
    for (const ParamSpec& one : make_model_spec(config, trainable).params)
      EXPECT_FALSE(one.module == "llm" && one.trainable) << one.name;
}

TEST(Adapters, AreScaledByTheirRankOrItsRoot) {
  EXPECT_DOUBLE_EQ(adapter_scale({.rank = 4, .alpha = 6}), 1.5);
  EXPECT_DOUBLE_EQ(adapter_scale({.rank = 4, .alpha = 6, .rslora = true}), 3);
}

TEST(Adapters, AreCutAsTheirLinears) {
  const ModelSpec model =
      with_lora(tiny_llava_config(), "llm", {.targets = {"q_proj", "o_proj"}, .rank = 3});
  const std::string layer = "language_model.model.layers.0.self_attn.";
  const auto cut = [&](const std::string& name) {
    return param_shard_of(param(model, layer + name), 2).dim;
  };
  EXPECT_EQ(cut("q_proj.lora_A.weight"), -1);
  EXPECT_EQ(cut("q_proj.lora_B.weight"), 0);
  EXPECT_EQ(cut("o_proj.lora_A.weight"), 1);
  EXPECT_EQ(cut("o_proj.lora_B.weight"), -1);
}

TEST(Adapters, OfMatricesOfTheOtherOrderAreCutAsThese) {
  const ModelSpec model = with_lora(testing::tiny_gpt2_config(), "llm",
                                    {.targets = {"c_attn", "attn.c_proj"}, .rank = 3});
  const auto cut = [&](const std::string& name) {
    return param_shard_of(param(model, "transformer.h.0.attn." + name), 2);
  };
  EXPECT_EQ(cut("c_attn.lora_A.weight").dim, -1);
  EXPECT_EQ(cut("c_attn.lora_B.weight").dim, 0);
  EXPECT_EQ(cut("c_attn.lora_B.weight").fused_sections, 3);
  EXPECT_EQ(cut("c_proj.lora_A.weight").dim, 1);
  EXPECT_EQ(cut("c_proj.lora_B.weight").dim, -1);
}

TEST(Adapters, OfATensorOfSeveralPartsAreOne) {
  const std::string phi3 =
      R"({"model_type": "phi3", "hidden_size": 16, "intermediate_size": 24, "vocab_size": 32,
          "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 64, "eos_token_id": 0})";
  const ModelSpec model = with_lora(phi3, "llm", {.targets = {"qkv_proj"}, .rank = 2});
  const auto is_b = [](const ParamSpec& one) { return one.name.ends_with("lora_B.weight"); };
  EXPECT_EQ(std::ranges::count_if(model.params, is_b), 3);
  EXPECT_EQ(std::ranges::find_if(model.params, is_b)->tensor_shape(), (Shape{32, 2}));
  EXPECT_EQ(trained(model).size(), 4);
}

TEST(Adapters, ThatMatchNothingAreRefusedWithTheNamesThereAre) {
  const std::string said = refusal("llm", {.targets = {"q_proj", "query"}});
  EXPECT_NE(said.find("model.llm.lora.targets: \"query\" matches no linear of llm"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("language_model.model.layers.*.self_attn.q_proj, "), std::string::npos);
  EXPECT_NE(refusal("llm", {.targets = {"lm_head"}}), "accepted");
  EXPECT_NE(refusal("vision", {.targets = {"patch_embedding"}}), "accepted");
}

/// The last rule that matches counts.
TEST(Adapters, MayHaveRanksAndAlphasOfTheirOwn) {
  const ModelSpec model = with_lora(tiny_llava_config(), "llm",
                                    {.targets = {"q_proj", "mlp.*"},
                                     .rank = 3,
                                     .alpha = 6,
                                     .rank_pattern = {"mlp.* = 4", "*.layers.1.mlp.up_proj=1"},
                                     .alpha_pattern = {"up_proj = 0.5"}});
  const std::string layer = "language_model.model.layers.";
  const auto shape_of = [&](const std::string& name) {
    return param(model, layer + name + ".lora_A.weight").shape[0];
  };
  EXPECT_EQ(shape_of("0.self_attn.q_proj"), 3);
  EXPECT_EQ(shape_of("0.mlp.up_proj"), 4);
  EXPECT_EQ(shape_of("1.mlp.up_proj"), 1);
  EXPECT_EQ(shape_of("1.mlp.down_proj"), 4);
  std::vector<double> scales;
  for (const UnitSpec& unit : model.units)
    for (const Adapter& adapter : unit.adapters) scales.push_back(adapter.scale);
  EXPECT_EQ(scales, (std::vector<double>{2, 1.5, 0.125, 1.5, 2, 1.5, 0.5, 1.5}));
}

TEST(Adapters, RefuseRulesThatAreNone) {
  const auto of_ranks = [](const std::string& rule) {
    return refusal("llm", {.targets = {"q_proj"}, .rank_pattern = {rule}});
  };
  EXPECT_NE(of_ranks("q_proj").find("model.llm.lora.rank_pattern holds \"q_proj\"; a rule is"),
            std::string::npos);
  EXPECT_NE(of_ranks("q_proj = 0").find("with a number above 0"), std::string::npos);
  EXPECT_NE(of_ranks("q_proj = 2.5").find("no whole number from 1 to 65536"), std::string::npos);
  EXPECT_NE(of_ranks("v_proj = 2").find("matches no linear that targets name"), std::string::npos);
  EXPECT_NE(refusal("llm", {.targets = {"q_proj"}, .alpha_pattern = {"v_proj = 2"}})
                .find("model.llm.lora.alpha_pattern: \"v_proj\" matches no linear"),
            std::string::npos);
}

TEST(Adapters, DropInputsWhereTheyMayTrain) {
  const auto lora = [](std::optional<double> dropout) {
    return with_adapters(tiny_llava_config(), "llm", {.targets = {"q_proj"}, .dropout = dropout});
  };
  EXPECT_EQ(lora(0), lora({}));
  EXPECT_FALSE(make_model_spec(lora(0)).has_dropout("llm"));
  EXPECT_TRUE(make_model_spec(lora(0.1)).has_dropout("llm"));
  EXPECT_FALSE(make_model_spec(lora(0.1)).has_dropout("vision"));
  EXPECT_FALSE(make_model_spec(lora(0.1), {.all_frozen = true}).has_dropout("llm"));
}

TEST(Adapters, AreInThePlansConfig) {
  Options options;
  options.llm.lora.targets = {"v_proj"};
  const Plan plan = make_plan(options, tiny_llava_config(), 1);
  EXPECT_TRUE(has_adapters(plan.config_json));
  EXPECT_EQ(trained(make_model_spec(plan.config_json)), trained(plan.model));
  EXPECT_EQ(make_model_spec(without_adapters(plan.config_json)).params.size(),
            make_model_spec(tiny_llava_config()).params.size());
}

TEST(Adapters, CostTheirBackwardAndNotThatOfFrozenWeights) {
  const ModelSpec plain = make_model_spec(tiny_llava_config());
  const ModelSpec model = with_lora(tiny_llava_config(), "llm", {.targets = {"q_proj"}, .rank = 1});
  const size_t block = model.units.size() - 2;
  const auto cost = [&](const ModelSpec& of) {
    return frozen_aware(of, estimated_costs(of, 16))[block];
  };
  EXPECT_GT(cost(model).forward, cost(plain).forward);
  EXPECT_GT(cost(model).backward_weight, 0);
  EXPECT_LT(cost(model).backward_weight, cost(plain).backward_weight / 4);
}

}  // namespace
}  // namespace zea::testing::test_adapters
