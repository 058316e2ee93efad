// SPDX-License-Identifier: Apache-2.0
// A family whose units have other parameters than their forward reads is found when its spec is
// made.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/error.hpp"
#include "spec/model_spec.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_check_roles {
namespace {

ModelSpec make_model() {
  return make_model_spec(testing::tiny_llava_config({.audio = true}));
}

std::string fault_of(const ModelSpec& model, const UnitSpec& unit) {
  try {
    record_graph(model, unit);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

TEST(CheckRoles, RefusesAParameterThatNothingReads) {
  const ModelSpec model = make_model();
  for (UnitSpec unit : model.units) {
    EXPECT_EQ(fault_of(model, unit), "");
    unit.roles.push_back("odd.weight");
    EXPECT_EQ(fault_of(model, unit),
              unit.name + " has a parameter \"odd.weight\" that it does not read");
  }
}

/// Biases, norms and the like may be absent; of each kind of unit this may not.
TEST(CheckRoles, RefusesAForwardThatReadsWhatIsNotThere) {
  const std::map<UnitKind, std::string> needed{
      {UnitKind::PatchEmbed, "patch.weight"}, {UnitKind::AudioEmbed, "conv1.weight"},
      {UnitKind::Block, "qkv.weight"},        {UnitKind::Projector, "linear_1.weight"},
      {UnitKind::TokenEmbed, "vocabulary"},   {UnitKind::Head, "vocabulary"},
  };
  const ModelSpec model = make_model();
  for (UnitSpec unit : model.units) {
    if (unit.kind == UnitKind::Merge) continue;
    const std::string& role = needed.at(unit.kind);
    EXPECT_EQ(std::erase(unit.roles, role), 1u) << unit.name;
    EXPECT_EQ(fault_of(model, unit),
              unit.name + " reads a parameter \"" + role + "\" that it does not have");
  }
}

/// Nothing reads a value before it is made, or after it was dropped; so tensors can be freed there.
TEST(CheckRoles, OperationsReadValuesThatLive) {
  const ModelSpec model = make_model();
  for (const UnitSpec& unit : model.units) {
    std::set<int> live;
    for (const Operation& operation : unit.graph.operations) {
      for (const int value : operation.dropped) EXPECT_EQ(live.erase(value), 1u) << unit.name;
      for (const int value : operation.inputs)
        EXPECT_TRUE(value < 0 || live.contains(value)) << unit.name;
      EXPECT_TRUE(live.insert(operation.output).second) << unit.name;
      for (const int value : operation.others) EXPECT_TRUE(live.insert(value).second) << unit.name;
    }
    EXPECT_TRUE(live.contains(unit.graph.output)) << unit.name;
  }
}

}  // namespace
}  // namespace zea::test_check_roles
