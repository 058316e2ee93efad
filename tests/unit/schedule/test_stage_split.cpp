// SPDX-License-Identifier: Apache-2.0
// Stages: the automatic cut against every other possible cut, templates with every fault that a
// user can make, and costs of units with parts of the model frozen.
#include "schedule/plan_parts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/error.hpp"
#include "schedule/plan.hpp"
#include "spec/stage_template.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_stage_split {
namespace {

using testing::tiny_llava_config;

std::vector<UnitCost> costs_of(const std::vector<double>& forwards) {
  std::vector<UnitCost> costs;
  for (double forward : forwards) costs.push_back({.forward = forward, .bytes = 1});
  return costs;
}

struct Cut {
  double costliest = -1, squares = 0;
  std::vector<int> lengths;
};

/// Tries every cut, those with short first runs first.
void try_cuts(const std::vector<UnitCost>& costs, size_t first, int runs, int64_t max_bytes,
              std::vector<int>& lengths, Cut& best) {
  if (runs == 0) {
    if (first != costs.size()) return;
    double costliest = 0, squares = 0;
    size_t unit = 0;
    for (int length : lengths) {
      double cost = 0;
      int64_t bytes = 0;
      for (int i = 0; i < length; ++i, ++unit) {
        cost += costs[unit].total();
        bytes += costs[unit].bytes;
      }
      if (max_bytes > 0 && bytes > max_bytes) return;
      costliest = std::max(costliest, cost);
      squares += cost * cost;
    }
    if (best.costliest < 0 ||
        std::pair(costliest, squares) < std::pair(best.costliest, best.squares))
      best = {costliest, squares, lengths};
    return;
  }
  for (size_t end = first + 1; end <= costs.size(); ++end) {
    lengths.push_back(static_cast<int>(end - first));
    try_cuts(costs, end, runs - 1, max_bytes, lengths, best);
    lengths.pop_back();
  }
}

TEST(StageSplit, IsTheBestOfAllCuts) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<UnitCost> costs;
    const int units = 1 + static_cast<int>(random() % 9);
    for (int u = 0; u < units; ++u)
      costs.push_back({.forward = static_cast<double>(random() % 6),
                       .backward_input = static_cast<double>(random() % 3),
                       .backward_weight = static_cast<double>(random() % 3),
                       .bytes = static_cast<int64_t>(random() % 5)});
    for (int stages = 1; stages <= units + 1; ++stages)
      for (int64_t max_bytes : {0, 4, 7}) {
        Cut best;
        std::vector<int> lengths;
        try_cuts(costs, 0, stages, max_bytes, lengths, best);

        EXPECT_EQ(split_evenly(costs, stages, max_bytes), best.lengths)
            << "trial " << trial << ", " << stages << " stages, " << max_bytes << " bytes";
      }
  }
}

TEST(StageSplit, OfEqualsRunsAreAlikeThenShortAtFirst) {
  EXPECT_EQ(split_evenly(costs_of({2, 2, 1, 1, 1, 1}), 4), (std::vector<int>{1, 1, 2, 2}));
  EXPECT_EQ(split_evenly(costs_of({1, 1, 1, 1, 1, 1, 1, 1}), 6),
            (std::vector<int>{1, 1, 1, 1, 2, 2}));
  EXPECT_EQ(split_evenly(costs_of({5, 1, 1, 1}), 3), (std::vector<int>{1, 1, 2}));
  EXPECT_EQ(split_evenly(costs_of({1, 1, 1, 1}), 2), (std::vector<int>{2, 2}));
}

TEST(StageSplit, WhatIsImpossibleIsEmpty) {
  EXPECT_TRUE(split_evenly(costs_of({1, 1}), 3).empty());
  EXPECT_TRUE(split_evenly(costs_of({1, 1}), 0).empty());
  EXPECT_TRUE(split_evenly(costs_of({1, 1, 1}), 1, 2).empty());
  EXPECT_EQ(split_evenly(costs_of({1, 9, 1, 1}), 3, 2), (std::vector<int>{1, 1, 2}));
}

class StageTemplateTest : public ::testing::Test {
 protected:
  std::vector<int> read(const std::vector<std::vector<std::string>>& stages) {
    faults_.clear();
    return stages_of_template(model_, "llm", stages, faults_);
  }
  /// Expects that these stages are refused with exactly this sentence.
  void expect_fault(const std::vector<std::vector<std::string>>& stages,
                    const std::string& sentence) {
    EXPECT_TRUE(read(stages).empty());
    ASSERT_EQ(faults_.size(), 1u) << (faults_.empty() ? "" : faults_[1]);
    EXPECT_EQ(faults_[0], sentence);
  }

  ModelSpec model_ = make_model_spec(tiny_llava_config({.layers = 4}));
  std::vector<std::string> faults_;
};

TEST_F(StageTemplateTest, NamesAndRunsOfNamesAreCounted) {
  EXPECT_EQ(read({{"llm.embed", "llm.merge", "llm.layers.0..llm.layers.1"},
                  {"llm.layers.2..llm.layers.3", "llm.head"}}),
            (std::vector<int>{4, 3}));
  EXPECT_EQ(read({{"llm.embed..llm.head"}}), std::vector<int>{7});
  EXPECT_TRUE(faults_.empty());
}

TEST_F(StageTemplateTest, MissingUnitsAreNamed) {
  expect_fault({{"llm.embed", "llm.merge"}, {"llm.layers.0", "llm.head"}},
               "mesh.llm.stages leaves out llm.layers.1..llm.layers.3; every unit of llm stands in "
               "one stage");
}

TEST_F(StageTemplateTest, DoubledUnitsAreNamed) {
  expect_fault(
      {{"llm.embed..llm.layers.1"}, {"llm.layers.1..llm.head"}},
      "mesh.llm.stages has llm.layers.1 twice, in stage 0 and in stage 1; each unit stands "
      "in one stage: take it out of one");
}

TEST_F(StageTemplateTest, UnknownUnitsAreNamedWithTheNearest) {
  const std::string units =
      "; the units of llm are llm.embed, llm.merge, llm.layers.0..llm.layers.3, llm.head";
  read({{"llm.embed..llm.layers.2", "llm.layer.3", "llm.head"}});
  ASSERT_EQ(faults_.size(), 2u);
  EXPECT_EQ(faults_[0],
            "mesh.llm.stages has \"llm.layer.3\", but there is no unit \"llm.layer.3\" (did you "
            "mean llm.layers.3?)" +
                units);
  EXPECT_EQ(faults_[1],
            "mesh.llm.stages leaves out llm.layers.3; every unit of llm stands in one stage");
  expect_fault({{"llm.embed..llm.head", "vision.embed"}},
               "mesh.llm.stages has \"vision.embed\", but vision.embed is a unit of vision, not of "
               "llm" +
                   units);
}

TEST_F(StageTemplateTest, OrderIsThatOfTheModel) {
  expect_fault({{"llm.merge", "llm.embed"}, {"llm.layers.0..llm.head"}},
               "mesh.llm.stages has llm.embed after llm.merge, but units run in the order "
               "llm.embed, llm.merge, llm.layers.0..llm.layers.3, llm.head; keep that order");
  read({{"llm.embed", "llm.merge", "llm.layers.3..llm.layers.0", "llm.head"}});
  ASSERT_FALSE(faults_.empty());
  EXPECT_EQ(faults_[0],
            "mesh.llm.stages has \"llm.layers.3..llm.layers.0\", but llm.layers.3 comes after "
            "llm.layers.0; write \"llm.layers.0..llm.layers.3\"");
}

TEST_F(StageTemplateTest, EmptyStagesAreNamed) {
  expect_fault({{"llm.embed..llm.layers.3"}, {}, {"llm.head"}},
               "stage 1 of mesh.llm.stages has no units; each stage needs one at least: leave it "
               "out, or give it some");
}

int unit_of(const ModelSpec& model, const std::string& name) {
  for (size_t u = 0; u < model.units.size(); ++u)
    if (model.units[u].name == name) return static_cast<int>(u);
  return -1;
}

/// Whether a unit's backward makes gradients of inputs, and of weights.
std::pair<bool, bool> backward_of(const Trainable& trainable, const std::string& name) {
  const ModelSpec model = make_model_spec(tiny_llava_config(), trainable);
  const UnitCost cost = frozen_aware(
      model, std::vector<UnitCost>(model.units.size(), {1, 2, 4, 8}))[unit_of(model, name)];
  EXPECT_EQ(cost.forward, 1);
  EXPECT_EQ(cost.bytes, 8);
  return {cost.backward_input == 2, cost.backward_weight == 4};
}

TEST(FrozenAware, BackwardIsWhatTrainingNeeds) {
  using Parts = std::pair<bool, bool>;
  const Trainable all, frozen_vision{.encoders = {{"vision", {.encoder = false}}}},
      only_projector{.encoders = {{"vision", {.encoder = false}}}, .llm = false},
      frozen_llm{.llm = false}, only_llm{.encoders = {{"vision", {false, false}}}};

  EXPECT_EQ(backward_of(all, "vision.layers.0"), Parts(true, true));
  EXPECT_EQ(backward_of(frozen_vision, "vision.layers.0"), Parts(false, false));
  EXPECT_EQ(backward_of(frozen_vision, "vision.projector"), Parts(true, true));
  EXPECT_EQ(backward_of(only_projector, "llm.embed"), Parts(false, false));
  EXPECT_EQ(backward_of(only_projector, "llm.merge"), Parts(true, false));
  EXPECT_EQ(backward_of(only_projector, "llm.head"), Parts(true, false));
  EXPECT_EQ(backward_of(frozen_llm, "llm.layers.0"), Parts(true, false));
  EXPECT_EQ(backward_of(only_llm, "vision.projector"), Parts(false, false));
  EXPECT_EQ(backward_of(only_llm, "llm.merge"), Parts(true, false));
}

TEST(EstimatedCosts, AreProductsOfShapes) {
  const ModelSpec model = make_model_spec(tiny_llava_config());
  const std::vector<UnitCost> costs = estimated_costs(model, 10);
  const auto cost = [&](const char* name) { return costs[unit_of(model, name)]; };
  // Hidden 24, 4 heads of 6, 2 of keys, 40 inside; 10 tokens of text with 2 images of 4 features,
  // 5 tokens of width 16 each, 24 inside.
  const double block = 10 * (24 * 24 * 2 + 2 * 24 * 12 + 3 * 24 * 40 + 2 * 24);
  const double pairs = 55 * 24 * 2;
  EXPECT_EQ(cost("llm.layers.0").forward, block + pairs);
  EXPECT_EQ(cost("llm.layers.0").backward_input, block + 2 * pairs);
  EXPECT_EQ(cost("llm.layers.0").backward_weight, block);
  EXPECT_EQ(cost("llm.head").forward, 10 * (40 * 24 + 24));
  EXPECT_EQ(cost("vision.embed").forward, 2 * (4 * 16 * 3 * 16 + 5 * (16 + 2 * 16)));
  EXPECT_EQ(cost("vision.embed").backward_input, 0);
  const double vision = 10 * (4 * 16 * 16 + 4 * 16 + 2 * 16 * 24 + 24 + 16 + 4 * 16);
  EXPECT_EQ(cost("vision.layers.0").forward, vision + 2 * 25 * 16 * 2);
  EXPECT_EQ(cost("vision.projector").backward_weight, 8 * (16 * 24 + 24 + 24 * 24 + 24));
  EXPECT_EQ(cost("llm.merge").backward_weight, 0);
  EXPECT_EQ(cost("llm.head").bytes, 16 * (40 * 24 + 24));
}

TEST(EstimatedCosts, RowsCostTheirNumberTimesOne) {
  const auto costs = [](int64_t rows) {
    Options options;
    options.data.rows_per_microbatch = rows;
    return make_plan(options, tiny_llava_config(), 1).unit_costs;
  };
  const std::vector<UnitCost> one = costs(1), sixteen = costs(16);
  for (size_t u = 0; u < one.size(); ++u) {
    EXPECT_EQ(sixteen[u].forward, 16 * one[u].forward);
    EXPECT_EQ(sixteen[u].backward_input, 16 * one[u].backward_input);
    EXPECT_EQ(sixteen[u].backward_weight, 16 * one[u].backward_weight);
    EXPECT_EQ(sixteen[u].bytes, one[u].bytes);
  }
}

class MeasuredCosts : public ::testing::Test {
 protected:
  std::string fault(const std::string& text) {
    try {
      measured_costs(model_, text, "costs.json", conditions_, notes_);
    } catch (const PlanError& error) {
      return error.what();
    }
    return "";
  }

  ModelSpec model_ = make_model_spec(tiny_llava_config());
  ProfileConditions conditions_{512, 2, "fp32", "cpu"};
  std::vector<std::string> notes_;
};

TEST_F(MeasuredCosts, AreReadAsTheyWereWritten) {
  std::vector<UnitCost> costs;
  for (size_t u = 0; u < model_.units.size(); ++u)
    costs.push_back({.forward = 1.0 / (3 + static_cast<double>(u)),
                     .backward_input = 1e-7 * static_cast<double>(u),
                     .backward_weight = 0.1});
  const auto read = measured_costs(model_, profile_json(model_, costs, conditions_), "costs.json",
                                   conditions_, notes_);

  ASSERT_EQ(read.size(), costs.size());
  for (size_t u = 0; u < costs.size(); ++u) {
    EXPECT_EQ(read[u].forward, costs[u].forward);
    EXPECT_EQ(read[u].backward_input, costs[u].backward_input);
    EXPECT_EQ(read[u].backward_weight, costs[u].backward_weight);
  }
  EXPECT_TRUE(notes_.empty());
}

TEST_F(MeasuredCosts, OtherConditionsAreNoted) {
  const std::vector<UnitCost> costs(model_.units.size());
  measured_costs(model_, profile_json(model_, costs, {512, 2, "bf16", "cpu"}), "costs.json",
                 conditions_, notes_);

  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_EQ(notes_[0],
            "mesh.profile = \"costs.json\" was measured with precision = \"bf16\", and this deck "
            "has \"fp32\": what units cost there is only about what they cost here; write another "
            "with zea --profile");
}

TEST_F(MeasuredCosts, OtherFilesAreRefused) {
  const std::string hint = "; write another with zea --profile";
  for (const char* text : {"", "[]", "{\"units\": 3}"})
    EXPECT_EQ(fault(text), "mesh.profile = \"costs.json\" is no file of measured costs" + hint);
  EXPECT_EQ(
      fault("{\"units\": {}}"),
      "mesh.profile = \"costs.json\" has no unit vision.embed, so it is of another model" + hint);
  for (const char* unit : {"4", "{}", "{\"forward\": -1}", "{\"forward\": \"1\"}"})
    EXPECT_EQ(
        fault("{\"units\": {\"vision.embed\": " + std::string(unit) + "}}"),
        "mesh.profile = \"costs.json\" has no seconds \"forward\" of unit vision.embed" + hint);
}

}  // namespace
}  // namespace zea::test_stage_split
