// SPDX-License-Identifier: Apache-2.0
// Claims of the table of families: each family is in it, and has every axis that it can have.
#include "support/family_layouts.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "support/config_refusal.hpp"

namespace zea::testing::test_family_layouts {
namespace {

TEST(FamilyLayouts, EveryFamilyMeetsEveryAxisThatItCanHave) {
  using enum FamilyFeature;
  std::map<std::string, std::set<FamilyFeature>> met;
  for (const FamilyLayout& layout : family_layouts()) {
    SCOPED_TRACE(layout.name());
    const Plan plan = plan_of(layout.run(), kFamilyRanks);
    std::set<FamilyFeature>& of_family = met[plan.model.family];
    for (const FamilyFeature feature : features_of(plan)) of_family.insert(feature);
    for (const FamilyFeature feature : {Tp, Cp, Pp, OwnRanks, FrozenEncoder})
      if (lacks(plan.model, feature)) of_family.insert(feature);
  }

  std::string names = refusal_of(nlohmann::json{{"model_type", "none"}});
  names.erase(0, names.find("allowed: ") + std::string("allowed: ").size());
  std::istringstream all(names);
  for (std::string family; std::getline(all >> std::ws, family, ',');) {
    // The whole model contains the thinker and other parts.
    if (family == "qwen2_5_omni" || family == "qwen3_omni_moe") continue;
    EXPECT_EQ(met[family].size(), 5u) << family;
  }
}

}  // namespace
}  // namespace zea::testing::test_family_layouts
