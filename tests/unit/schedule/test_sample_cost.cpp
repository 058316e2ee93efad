// SPDX-License-Identifier: Apache-2.0
// Costs of samples: on the tiny model exactly the costs of the units of a stage split.
#include "schedule/sample_cost.hpp"

#include <gtest/gtest.h>

#include "schedule/plan_parts.hpp"
#include "support/made_up_models.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_sample_cost {
namespace {

using testing::merge_images_of_any_size;
using testing::mix_windows;
using testing::see_windows;
using testing::tiny_llava_config;

MeshShape shared_mesh() {
  MeshShape mesh;
  for (const char* module : {"vision", "llm"}) {
    ModuleGrid grid;
    grid.module = module;
    mesh.modules.push_back(grid);
  }
  return mesh;
}

MeshShape disjoint_mesh() {
  MeshShape mesh = shared_mesh();
  mesh.modules[1].first_rank = 1;
  mesh.modules[1].tp = 2;
  return mesh;
}

/// The whole model's, as a stage split would count it: `tokens` of text with one image.
double total(const ModelSpec& model, int64_t tokens) {
  double sum = 0;
  for (const UnitCost& cost : frozen_aware(model, estimated_costs(model, tokens)))
    sum += cost.total();
  return sum;
}

TEST(SampleCost, IsThatOfTheUnitsForAnyLength) {
  ModelSpec model = make_model_spec(tiny_llava_config());
  for (void (*remake)(ModelSpec&) : {+[](ModelSpec&) {}, mix_windows, see_windows}) {
    remake(model);
    const auto costs = sample_costs(model, shared_mesh());
    ASSERT_EQ(costs.size(), 1);
    // So short that the estimate, too, has one image.
    for (int64_t tokens = 1; tokens < 2 * model.encoders[0].item_shape().features; ++tokens)
      EXPECT_NEAR(sample_cost({tokens, {1}, tokens}, costs[0]), total(model, tokens), 1e-6)
          << tokens;
  }
}

TEST(SampleCost, GrowsWithTheTokensWhereTheySeeWindows) {
  ModelSpec model = make_model_spec(tiny_llava_config());
  const double full = sample_cost({2000, {}, 0}, sample_costs(model, shared_mesh())[0]);
  see_windows(model);
  const SampleCosts costs = sample_costs(model, shared_mesh())[0];
  const double one = sample_cost({1000, {}, 0}, costs), two = sample_cost({2000, {}, 0}, costs);
  EXPECT_NEAR(two, 2 * one, 1e-2 * one);
  EXPECT_LT(two, 0.9 * full);
}

TEST(SampleCost, GrowsWithTheSquareOfTheTokens) {
  const ModelSpec model = make_model_spec(tiny_llava_config());
  const SampleCosts costs = sample_costs(model, shared_mesh())[0];
  EXPECT_GT(costs.pair, 0);
  const double one = sample_cost({1000, {}, 0}, costs), two = sample_cost({2000, {}, 0}, costs);
  EXPECT_GT(two, 2.1 * one);
  EXPECT_GT(sample_cost({1000, {}, 500}, costs), one);
}

TEST(SampleCost, AnItemOfAShapeOfItsOwnCostsWhatItsTokensDo) {
  ModelSpec model = make_model_spec(tiny_llava_config({.image_size = 24, .siglip = true}));
  merge_images_of_any_size(model);
  const SampleCosts costs = sample_costs(model, shared_mesh())[0];
  ItemShape shape = model.encoders[0].item_shape();
  const auto cost_of = [&](int64_t times) {
    double all = 0;
    for (const UnitSpec& unit : model.units) {
      if (unit.encoder < 0) continue;
      const EncoderSpec& encoder = model.encoders[0];
      ItemShape item = encoder.item_shape();
      item.tokens *= times;
      item.features *= times;
      all += unit_work(model, unit, sizes_of_items(encoder, item, 1))
                 .total(pairs_of_items(model, unit, item, 1));
    }
    ItemList items;
    items.add(0, 1, {.tokens = times * shape.tokens});
    EXPECT_NEAR(sample_cost({0, items, 0}, costs), all, 1e-9 * all) << times;
    return all;
  };
  EXPECT_GT(cost_of(3), 3.01 * cost_of(1));
}

TEST(SampleCost, AFrozenEncoderCostsItsForwardOnly) {
  const double trained =
      sample_costs(make_model_spec(tiny_llava_config()), shared_mesh())[0].items[0].usual;
  const ModelSpec frozen =
      make_model_spec(tiny_llava_config(), {.encoders = {{"vision", {.encoder = false}}}});
  EXPECT_LT(sample_costs(frozen, shared_mesh())[0].items[0].usual, 0.6 * trained);
}

TEST(SampleCost, ModulesOnRanksOfTheirOwnHaveCostsOfTheirOwn) {
  const ModelSpec model = make_model_spec(tiny_llava_config());
  const SampleCosts together = sample_costs(model, shared_mesh())[0];
  const auto apart = sample_costs(model, disjoint_mesh());
  ASSERT_EQ(apart.size(), 2);
  EXPECT_EQ(apart[0], (SampleCosts{.token = 0, .items = together.items}));
  EXPECT_EQ(apart[1].items[0].usual, 0);
  EXPECT_DOUBLE_EQ(apart[1].token, together.token / 2);  // two ranks share it
}

TEST(SampleCost, FollowsMeasuredCosts) {
  const ModelSpec model = make_model_spec(tiny_llava_config());
  std::vector<UnitCost> measured = frozen_aware(model, estimated_costs(model, 64));
  const SampleCosts estimated = sample_costs(model, shared_mesh())[0];
  EXPECT_EQ(sample_costs(model, shared_mesh(), measured, 64)[0], estimated);
  const std::vector<UnitCost> of_rows = frozen_aware(model, estimated_costs(model, 64, 4));
  EXPECT_EQ(sample_costs(model, shared_mesh(), of_rows, 64, 4)[0], estimated);

  for (size_t u = 0; u < measured.size(); ++u) {
    const double factor = model.units[u].module == "vision" ? 3e-9 : 1e-9;
    measured[u] = {factor * measured[u].forward, factor * measured[u].backward_input,
                   factor * measured[u].backward_weight, 0};
  }
  const SampleCosts slow = sample_costs(model, shared_mesh(), measured, 64)[0];
  EXPECT_NEAR(slow.items[0].usual / slow.token, 3 * estimated.items[0].usual / estimated.token,
              1e-9);
}

}  // namespace
}  // namespace zea::test_sample_cost
