// SPDX-License-Identifier: Apache-2.0
// Keys that a run decides: mesh = "auto" and checkpoint.every = "auto", and what contradicts them.
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "deck/deck.hpp"

namespace zea::test_auto_keys {
namespace {

const std::string kMinimal = "[model]\nweights = \"w.h5\"\n[data]\ntrain = \"t.h5\"\n";

std::string faults_of(const std::string& text) {
  try {
    parse_deck(text, "x.toml", {});
  } catch (const DeckError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(AutoKeys, LeavesTheLayoutToASearch) {
  const Options top = parse_deck("mesh = \"auto\"\n" + kMinimal, "x.toml", {});
  EXPECT_EQ(top.mesh.layout, LayoutSource::Auto);
  EXPECT_TRUE(top.given.contains("mesh.layout"));
  EXPECT_EQ(parse_deck(kMinimal, "x.toml", {"mesh=auto"}).mesh.layout, LayoutSource::Auto);
  const Options kept = parse_deck(kMinimal + "[mesh]\nlayout = \"auto\"\nhardware = \"h.toml\"\n",
                                  "x.toml", {"mesh.llm.tp=2"});
  EXPECT_EQ(kept.mesh.layout, LayoutSource::Auto);
  EXPECT_EQ(kept.meshes["llm"].tp, 2);
  EXPECT_TRUE(contains(faults_of("mesh = \"auto\"\n" + kMinimal + "[mesh.llm]\ntp = 2\n"),
                       "write [mesh] layout = \"auto\" and these keys below"));
  EXPECT_TRUE(contains(faults_of("mesh = \"best\"\n" + kMinimal), "mesh is a section"));
  EXPECT_TRUE(contains(faults_of(kMinimal + "[mesh]\nhardware = \"h.toml\"\n"),
                       "mesh.hardware = \"h.toml\" belongs to mesh.layout = \"auto\""));
  EXPECT_TRUE(contains(faults_of(kMinimal + "[mesh]\nsearched_ranks = 2\n"),
                       "mesh.searched_ranks = 2 belongs to mesh.layout"));
}

TEST(AutoKeys, LeavesCheckpointsToTheirCost) {
  const Options deck =
      parse_deck(kMinimal + "[checkpoint]\nevery = \"auto\"\nmtbf_hours = 3.0\n", "x.toml", {});
  EXPECT_TRUE(deck.checkpoint.every.is_auto());
  EXPECT_EQ(deck.checkpoint.mtbf_hours, 3);
  EXPECT_EQ(parse_deck(kMinimal, "x.toml", {"checkpoint.every=7"}).checkpoint.every.count(), 7);
  EXPECT_TRUE(contains(faults_of(kMinimal + "[checkpoint]\nevery = true\n"),
                       "checkpoint.every = true; write a number of steps"));
  EXPECT_TRUE(contains(faults_of(kMinimal + "[checkpoint]\nmtbf_hours = 3.0\n"),
                       "checkpoint.mtbf_hours = 3.0 has no effect on a fixed checkpoint.every"));
}

TEST(AutoKeys, TakeSelectiveRecomputationAlone) {
  const auto recomputing = [](const std::string& value) {
    return "[model]\nweights = \"w.h5\"\nactivation_checkpointing = " + value +
           "\n[data]\ntrain = \"t.h5\"\n";
  };
  EXPECT_TRUE(parse_deck(recomputing("\"selective\""), "x.toml", {})
                  .model.activation_checkpointing.is_selective());
  EXPECT_EQ(parse_deck(recomputing("2"), "x.toml", {"model.activation_checkpointing=selective"})
                .model.activation_checkpointing,
            AutoOption::selective());
  EXPECT_TRUE(contains(faults_of(recomputing("\"full\"")),
                       "it must be true, false, \"selective\", \"auto\" or an integer"));
  EXPECT_TRUE(contains(faults_of(recomputing("-1")), "0 to 1000000"));
  EXPECT_TRUE(contains(faults_of(kMinimal + "[mesh.llm]\nsync_grad_accum = \"selective\"\n"),
                       "it must be true, false or \"auto\""));
}

}  // namespace zea::test_auto_keys
