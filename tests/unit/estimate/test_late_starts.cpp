// SPDX-License-Identifier: Apache-2.0
// Parameters that a resumed run begins to train, whose updates would be counted from elsewhere.
#include "estimate/plan_notes.hpp"

#include <gtest/gtest.h>

#include "support/tiny_llava.hpp"

namespace zea::test_late_starts {
namespace {

Options with_frozen(const std::vector<std::string>& rules) {
  Options options;
  options.optim.frozen = rules;
  return options;
}

std::string said_of(const Options& before, const Options& now, int64_t updates) {
  return late_starts(make_plan(now, testing::tiny_llava_config(), 1), before, updates);
}

TEST(LateStarts, AreNamed) {
  for (const std::vector<std::string>& rules :
       {std::vector<std::string>{"vision"}, {"vision = 41"}, {"vision = 40"}}) {
    const std::string said = said_of(with_frozen(rules), {}, 40);
    EXPECT_NE(said.find("did not train in the 40 updates before this start"), std::string::npos);
    EXPECT_NE(said.find("vision_tower."), std::string::npos) << said;
    EXPECT_NE(said.find(" more did not"), std::string::npos) << said;
    EXPECT_NE(said.find("optim.frozen = [\"pattern = 40\"]"), std::string::npos) << said;
  }
  Options frozen;
  frozen.encoders["vision"].train = false;
  EXPECT_NE(said_of(frozen, {}, 1), "");
}

TEST(LateStarts, AreNotThoseThatAreCountedFromThere) {
  EXPECT_EQ(said_of(with_frozen({"vision"}), with_frozen({"vision = 40"}), 40), "");
  EXPECT_EQ(said_of(with_frozen({"vision"}), with_frozen({"vision = 50"}), 40), "");
  EXPECT_EQ(said_of(with_frozen({"vision = 39"}), {}, 40), "");
  EXPECT_EQ(said_of(with_frozen({"vision"}), with_frozen({"vision"}), 40), "");
  EXPECT_EQ(said_of(with_frozen({"vision"}), {}, 0), "");
  EXPECT_EQ(said_of(with_frozen({"vision"}), with_frozen({"vision from 30"}), 40), "");
  EXPECT_NE(said_of(with_frozen({"vision"}), with_frozen({"vision from 50"}), 40), "");
  Options muon;
  muon.optim.kind = OptimizerKind::Muon;
  EXPECT_EQ(said_of(with_frozen({"*.mlp.fc1.weight"}), muon, 40), "");
  EXPECT_NE(said_of(with_frozen({"*.mlp.fc1.bias"}), muon, 40), "");
  Options sgd;
  sgd.optim.kind = OptimizerKind::Sgd;
  EXPECT_EQ(said_of(with_frozen({"vision"}), sgd, 40), "");
}

}  // namespace
}  // namespace zea::test_late_starts
