// SPDX-License-Identifier: Apache-2.0
// Claims of the table of pipelines: the plan accepts every layout and gives it its number of ranks,
// any two compatible settings occur together in one of them, and a refused pipeline is refused with
// its sentence.
#include "support/pipeline_table.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "core/error.hpp"
#include "schedule/plan.hpp"

namespace zea::testing::test_pipeline_table {
namespace {

constexpr int kMostRanks = 8;

std::string refusal(const Options& deck, const std::string& config, int ranks,
                    const std::function<void(ModelSpec&)>& remake = {}) {
  try {
    ModelSpec model = model_of(deck, config);
    if (remake) remake(model);
    make_plan(deck, model, config, ranks);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PipelineTable, EveryLayoutPlans) {
  for (const PipelineLayout& layout : pipelines()) {
    EXPECT_EQ(refusal(deck_of(layout), config_of(layout), layout.ranks(),
                      [&](ModelSpec& model) { remake(layout, model); }),
              "accepted")
        << layout.name();
    EXPECT_LE(layout.ranks(), kMostRanks) << layout.name();
    EXPECT_GE(layout.ranks(), 2) << layout.name();
  }
}

TEST(PipelineTable, NamesAreUnique) {
  std::set<std::string> names;
  for (const PipelineLayout& layout : pipelines())
    EXPECT_TRUE(names.insert(layout.name()).second) << layout.name();
}

/// A setting that varies, and its value in a layout.
struct Factor {
  const char* name;
  std::function<std::string(const PipelineLayout&)> value_of;
};

std::string frozen_text(const PipelineLayout& layout) {
  return layout.has_encoder() ? std::to_string(static_cast<int>(layout.frozen)) : "no encoder";
}

std::vector<Factor> factors() {
  const auto several = [](int degree) { return std::string(degree > 1 ? "several" : "one"); };
  return {
      {"placement", [](const auto& l) { return l.placement; }},
      {"schedule", [](const auto& l) { return l.schedule; }},
      {"frozen", frozen_text},
      {"dp", [=](const auto& l) { return several(l.replicas()); }},
      {"tp", [=](const auto& l) { return several(l.llm.tp); }},
      {"cp", [=](const auto& l) { return several(l.llm.cp); }},
      {"strategy", [](const auto& l) { return l.strategy; }},
      {"tied", [](const auto& l) { return l.is_tied() ? "tied" : "untied"; }},
  };
}

using Setting = std::pair<std::string, std::string>;

/// Impossible pairs: without an encoder there is nothing to place on separate ranks.
bool is_impossible(const Setting& a, const Setting& b) {
  const auto is_own = [](const Setting& s) {
    return s == Setting{"placement", "colocated"} || s == Setting{"placement", "disjoint"};
  };
  const Setting no_encoder{"frozen", "no encoder"}, untied{"tied", "untied"};
  return (a == no_encoder && (is_own(b) || b == untied)) ||
         (b == no_encoder && (is_own(a) || a == untied));
}

TEST(PipelineTable, AnyTwoSettingsThatGoTogetherDoSoInOneOfThem) {
  const std::vector<Factor> all = factors();
  for (size_t a = 0; a < all.size(); ++a)
    for (size_t b = a + 1; b < all.size(); ++b) {
      std::set<std::string> of_a, of_b;
      std::set<std::pair<std::string, std::string>> pairs;
      for (const PipelineLayout& layout : pipelines()) {
        of_a.insert(all[a].value_of(layout));
        of_b.insert(all[b].value_of(layout));
        pairs.insert({all[a].value_of(layout), all[b].value_of(layout)});
      }
      for (const std::string& one : of_a)
        for (const std::string& other : of_b)
          EXPECT_TRUE(pairs.contains({one, other}) ||
                      is_impossible({all[a].name, one}, {all[b].name, other}))
              << "missing: " << all[a].name << " " << one << ", " << all[b].name << " " << other;
    }
}

TEST(PipelineTable, HasEverythingThatMayBeFrozen) {
  std::set<Frozen> frozen;
  for (const PipelineLayout& layout : pipelines()) frozen.insert(layout.frozen);
  EXPECT_EQ(frozen.size(), kNumFrozen);
}

TEST(PipelineTable, RefusesTheRestWithASentence) {
  for (const RefusedPipeline& refused : refused_pipelines()) {
    Options deck;
    refused.set(deck);
    const std::string config = refused.gpt2 ? tiny_gpt2_config() : tiny_llava_config({.layers = 4});
    const std::string said = refusal(deck, config, refused.ranks);
    EXPECT_NE(said.find(refused.sentence), std::string::npos) << refused.name << ": " << said;
  }
}

}  // namespace
}  // namespace zea::testing::test_pipeline_table
