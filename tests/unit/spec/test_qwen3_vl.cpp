// SPDX-License-Identifier: Apache-2.0
// Qwen3-VL as a spec: names and shapes, positions between rows of a table, features of several
// depths, their stage, and refusals.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "schedule/plan.hpp"
#include "support/config_refusal.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::test_qwen3_vl {
namespace {

using testing::tiny_qwen3_vl_config;

const UnitSpec& unit_called(const ModelSpec& model, const std::string& name) {
  return *std::ranges::find(model.units, name, &UnitSpec::name);
}

TEST(Qwen3Vl, HasTheNamesAndShapesOfItsFiles) {
  const ModelSpec model = make_model_spec(tiny_qwen3_vl_config());
  const auto shape = [&](const std::string& name) {
    return model.params.at(static_cast<size_t>(model.param_index(name))).tensor_shape();
  };
  const std::string deep = "model.visual.deepstack_merger_list.1.";
  EXPECT_EQ(shape("model.visual.pos_embed.weight"), (Shape{25, 16}));
  EXPECT_EQ(shape("model.visual.patch_embed.proj.bias"), Shape{16});
  EXPECT_EQ(shape("model.visual.blocks.1.mlp.linear_fc1.weight"), (Shape{40, 16}));
  EXPECT_EQ(shape("model.visual.merger.norm.weight"), Shape{16});
  EXPECT_EQ(shape(deep + "norm.weight"), Shape{64});
  EXPECT_EQ(shape(deep + "linear_fc2.weight"), (Shape{24, 64}));
  EXPECT_EQ(shape("model.language_model.layers.0.self_attn.q_norm.weight"), Shape{12});
  EXPECT_EQ(shape("lm_head.weight"), (Shape{61, 24}));
}

TEST(Qwen3Vl, BlocksTakeFeaturesInTheOrderOfTheirDepths) {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen3_vl_config());
  config["vision_config"]["deepstack_visual_indexes"] = {1, 0};
  const ModelSpec model = make_model_spec(config.dump());
  const auto added_to = [&](const std::string& block) {
    return model.units[unit_called(model, block).inputs.at(1).unit].name;
  };
  EXPECT_EQ(added_to("llm.layers.0"), "vision.deepstack.1");
  EXPECT_EQ(added_to("llm.layers.1"), "vision.deepstack.0");
  EXPECT_EQ(unit_called(model, "llm.layers.2").inputs.size(), 1u);
  const int source = unit_called(model, "vision.deepstack.1").inputs[0].unit;
  EXPECT_EQ(model.units[source].name, "vision.layers.0");
}

TEST(Qwen3Vl, PositionsLieBetweenRowsOfATable) {
  const ModelSpec model = make_model_spec(tiny_qwen3_vl_config());
  const PatchInput& patches = model.encoders[0].patches();
  const ItemShape image{.tokens = 24, .features = 6, .merge = 4, .width = 6};  // 4 x 6 patches
  // Patch 3 of the second square: row 1, column 3, of the table's row 4/3 and column 12/5.
  const auto shares = patches.table_shares(7, image);
  const double row = 1.0 / 3, column = 0.4;
  const int64_t rows[] = {7, 8, 12, 13};
  const double expected[] = {(1 - row) * (1 - column), (1 - row) * column, row * (1 - column),
                             row * column};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(shares[i].row, rows[i]);
    EXPECT_NEAR(shares[i].share, expected[i], 1e-12);
  }
  // The last patch lies on the last row, and one row of patches on the first.
  EXPECT_EQ(patches.table_shares(23, image)[0].row, 24);
  EXPECT_EQ(patches.table_shares(23, image)[0].share, 1);
}

std::string plan_fault(const Options& deck, int ranks) {
  try {
    make_plan(deck, tiny_qwen3_vl_config(), ranks);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "planned";
}

TEST(Qwen3Vl, BlocksThatTakeFeaturesStandInOneStage) {
  Options deck;
  deck.meshes["llm"].pp = 2;
  const Plan plan = make_plan(deck, tiny_qwen3_vl_config(), 2);
  const auto stage_of = [&](const std::string& name) {
    const auto unit = &unit_called(plan.model, name) - plan.model.units.data();
    return plan.stage_of_unit(static_cast<int>(unit));
  };
  EXPECT_EQ(stage_of("llm.layers.0"), stage_of("llm.merge"));
  EXPECT_EQ(stage_of("llm.layers.1"), stage_of("llm.merge"));

  deck.meshes["llm"].stages = {{"llm.embed..llm.layers.0"}, {"llm.layers.1..llm.head"}};
  EXPECT_NE(plan_fault(deck, 2).find("mesh.llm.stages parts llm.merge, llm.layers.0..llm.layers.1"),
            std::string::npos)
      << plan_fault(deck, 2);
  deck.meshes["llm"].stages = {{"llm.embed..llm.layers.1"}, {"llm.layers.2..llm.head"}};
  EXPECT_EQ(plan_fault(deck, 2), "planned");

  deck.meshes["llm"] = {};
  deck.meshes["llm"].pp = 6;
  EXPECT_EQ(plan_fault(deck, 6),
            "mesh.llm.pp = 6 with virtual_stages = 1 asks for 6 stages, but llm.merge, "
            "llm.layers.0..llm.layers.1 stand in one, as they make or take features of encoders, "
            "which leaves 5; allowed: up to 5");
}

/// The refusal of a config in which `change` was made.
template <class Change>
std::string refusal(Change change) {
  nlohmann::json config = nlohmann::json::parse(tiny_qwen3_vl_config());
  change(config);
  return testing::refusal_of(config);
}

TEST(Qwen3Vl, RefusesWhatIsNotBuiltByKey) {
  testing::expect_refusal(
      refusal([](auto& c) { c["vision_config"]["num_position_embeddings"] = 24; }),
      "num_position_embeddings = 24; allowed: the square of an integer");
  const auto with_depths = [](const std::vector<int>& depths) {
    return refusal([&](auto& c) { c["vision_config"]["deepstack_visual_indexes"] = depths; });
  };
  testing::expect_refusal(with_depths({0, 3}),
                          "deepstack_visual_indexes = 3; allowed: 0 to 2, once");
  testing::expect_refusal(with_depths({1, 1}), "deepstack_visual_indexes = 1");
  testing::expect_refusal(
      refusal([](auto& c) { c["text_config"]["rope_parameters"]["mrope_interleaved"] = false; }),
      "mrope_interleaved");
  testing::expect_refusal(refusal([](auto& c) { c["vision_config"]["window_size"] = 112; }),
                          "vision_config.window_size");
}

}  // namespace
}  // namespace zea::test_qwen3_vl
