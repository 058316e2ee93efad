// SPDX-License-Identifier: Apache-2.0
// The verdict over the passes of a replay: which pass, rank or program was wrong.
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "train/step_replay.hpp"

namespace zea::test_replay_verdict {
namespace {

/// An output and its gradient, whose bits are the letter of a pass.
ValueHashes pass(char bits, int unit = 4) {
  return {{HashedValue::Output, 1, 0, 'x'},
          {HashedValue::Output, unit, 0, bits},
          {HashedValue::OutputGradient, unit, 0, bits}};
}

/// `bits`: of the passes in the order of ReplayedPart: replayed, first, replayed again, by a third
/// rank, again; ' ': there is no third rank.
ReplayedPart part_of(int first_rank, int replaying_rank, const std::string& bits, int unit = 4) {
  ReplayedPart part;
  part.first_rank = first_rank;
  part.replaying_rank = replaying_rank;
  part.replayed = pass(bits[0], unit);
  part.first = pass(bits[1], unit);
  part.replayed_again = pass(bits[2], unit);
  if (bits[3] != ' ') {
    part.third_rank = 7;
    part.by_third = pass(bits[3], unit);
  }
  part.again = pass(bits[4], unit);
  return part;
}

struct Case {
  const char* bits;
  ReplayVerdict verdict;
  std::vector<int> ranks;
  bool is_undecided = false;
};

TEST(ReplayVerdict, OfOnePart) {
  constexpr auto kTransient = ReplayVerdict::Transient;
  constexpr auto kPersistent = ReplayVerdict::Persistent;
  constexpr auto kSoftware = ReplayVerdict::Software;
  const std::vector<Case> cases = {
      {"abaaa", kTransient, {3}},           {"aba a", kTransient, {3}},
      {"babaa", kPersistent, {2}},          {"baaaa", kTransient, {2}},
      {"baa a", kTransient, {2}},           {"bab a", kPersistent, {2, 3}, true},
      {"ababb", kPersistent, {2}},          {"abaab", kPersistent, {3}},
      {"abacb", kPersistent, {2, 3}, true}, {"bacaa", kPersistent, {2}},
      {"abaac", kPersistent, {3}},          {"abcad", kSoftware, {3}},
      {"aaaab", kPersistent, {3}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.bits);
    const std::optional<ReplayFinding> found = judge_replay({part_of(3, 2, one.bits)});
    ASSERT_TRUE(found);
    EXPECT_STREQ(replay_verdict_name(found->verdict), replay_verdict_name(one.verdict));
    EXPECT_EQ(found->ranks, one.ranks);
    EXPECT_EQ(found->is_undecided, one.is_undecided);
    EXPECT_EQ(found->where.index, 4);
    EXPECT_EQ(static_cast<int>(found->where.value), static_cast<int>(HashedValue::Output));
  }
  EXPECT_FALSE(judge_replay({part_of(3, 2, "aaaaa"), part_of(2, 1, "bbb b")}));
}

TEST(ReplayVerdict, OfRanksThatRepeatTheirOwnWork) {
  EXPECT_EQ(judge_replay({part_of(3, 3, "abb b")})->verdict, ReplayVerdict::Transient);
  EXPECT_EQ(judge_replay({part_of(3, 3, "abb a")})->verdict, ReplayVerdict::Transient);
  EXPECT_EQ(judge_replay({part_of(3, 3, "aba c")})->verdict, ReplayVerdict::Software);
  EXPECT_EQ(judge_replay({part_of(3, 3, "aba b")})->verdict, ReplayVerdict::Software);
}

/// An error in an early unit of one rank reaches the later units of others.
TEST(ReplayVerdict, CountsTheErrorThatComesFirst) {
  const auto found = judge_replay(
      {part_of(0, 1, "aba a", 6), part_of(2, 3, "aba a", 2), part_of(4, 5, "aba a", 2)});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->ranks, (std::vector{2, 4}));
  EXPECT_EQ(found->where.index, 2);
}

TEST(ReplayVerdict, TheWorstOfSeveralCounts) {
  const auto found = judge_replay({part_of(0, 1, "aba a", 2), part_of(2, 3, "abaab", 6)});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->verdict, ReplayVerdict::Persistent);
  EXPECT_EQ(found->ranks, std::vector{2});
}

TEST(ReplayVerdict, RefusesPassesOverOtherValues) {
  ReplayedPart part = part_of(3, 2, "aba a");
  part.replayed.pop_back();
  EXPECT_THROW((void)judge_replay({part}), InternalError);
}

TEST(ReplayVerdict, IsASentence) {
  ReplayFinding finding{.step = 12,
                        .verdict = ReplayVerdict::Persistent,
                        .ranks = {2},
                        .where = {HashedValue::OutputGradient, 4, 1, 0},
                        .unit = "llm.layers.3",
                        .hosts = {"n07"}};
  EXPECT_TRUE(
      describe(finding).starts_with("step 12: the output's gradient of llm.layers.3 in "
                                    "microbatch 1 has wrong bits on rank 2 (n07), but not "
                                    "on other ranks"))
      << describe(finding);
}

TEST(ReplayVerdict, ReplicasLieAlikeIfTheirRanksAreOnNodesInTheSameWay) {
  EXPECT_TRUE(lie_alike({"a", "a", "b", "b"}, 2));
  EXPECT_TRUE(lie_alike({"a", "b", "b", "a"}, 2));
  EXPECT_FALSE(lie_alike({"a", "a", "a", "b", "b", "b"}, 2));
  EXPECT_TRUE(lie_alike({"a", "a", "a", "b", "b", "b"}, 1));
}

}  // namespace
}  // namespace zea::test_replay_verdict
