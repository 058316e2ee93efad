// SPDX-License-Identifier: Apache-2.0
// Who keeps a run from going on, from what its ranks did last; and the reports that travel.
#include "watch/rank_report.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "core/system.hpp"

namespace zea::test_hang_verdict {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1000 * kSecond;

RankReport report_of(const std::string& action, std::map<std::string, int64_t> calls) {
  RankReport report{.host = "node1", .taken_at = kNow, .state = {}};
  report.state.process = 42;
  report.state.step = 3;
  report.state.heartbeat = kNow - kSecond / 10;
  report.state.moved_at = kNow - 20 * kSecond;
  report.state.open = {{action, kNow - 20 * kSecond, 0}};
  report.state.calls_of_group = std::move(calls);
  return report;
}

RankReport waiting(const std::string& group, int64_t call, std::map<std::string, int64_t> calls,
                   std::vector<int> peers = {}) {
  RankReport report = report_of("backward llm.head", std::move(calls));
  report.state.open.push_back({"wait for all_reduce of " + group, kNow - 15 * kSecond, 0});
  report.state.waits = {group, call, std::move(peers)};
  return report;
}

void freeze(RankReport& report) {
  report.state.heartbeat = kNow - 10 * kSecond;
}

bool says(const HangVerdict& verdict, const std::string& part) {
  return verdict.text.find(part) != std::string::npos;
}

TEST(HangVerdict, ARankThatHasNotMadeTheCallIsBehind) {
  RankReports reports;
  reports[0] = waiting("control", 9, {{"control", 9}});
  reports[1] = waiting("control", 9, {{"control", 9}});
  reports[2] = report_of("load", {{"control", 8}});

  const HangVerdict verdict = judge_hang(reports, 3, 3);

  EXPECT_EQ(verdict.behind, std::vector<int>{2});
  EXPECT_TRUE(
      says(verdict, "rank 2 (node1, process 42, step 3) is behind: it is in load (for 20.0 s)"))
      << verdict.text;
  EXPECT_TRUE(says(verdict,
                   "2 ranks wait for it, the first is rank 0 in backward llm.head, in it "
                   "wait for all_reduce of control (for 15.0 s)"))
      << verdict.text;
}

TEST(HangVerdict, TellsWhatADeviceWaitsFor) {
  RankReports reports;
  reports[0] = report_of("read the loss", {{"fsdp", 7}});
  reports[0].state.waits = {"fsdp", 7, {}};
  reports[0].state.on_device = {"all_gather 8 float32 #7 of fsdp", kNow - 30 * kSecond, 0};
  reports[1] = report_of("load", {{"fsdp", 6}});

  const HangVerdict verdict = judge_hang(reports_from_json(reports_to_json(reports)), 2, 3);

  EXPECT_EQ(verdict.behind, std::vector<int>{1});
  EXPECT_TRUE(says(verdict,
                   "rank 0 in read the loss (for 20.0 s), its device in all_gather 8 float32 #7 of "
                   "fsdp"))
      << verdict.text;
}

TEST(HangVerdict, OnlyTheRankAtTheEndOfAChainIsBehind) {
  RankReports reports;
  reports[0] = waiting("a", 5, {{"a", 5}});
  reports[1] = waiting("b", 2, {{"a", 4}, {"b", 2}});
  reports[2] = report_of("optimizer", {{"b", 1}});

  EXPECT_EQ(judge_hang(reports, 3, 3).behind, std::vector<int>{2});
}

TEST(HangVerdict, AStoppedProcessIsBehindWhereverItWas) {
  RankReports reports;
  reports[0] = waiting("a", 5, {{"a", 5}});
  reports[1] = waiting("a", 5, {{"a", 5}});
  freeze(reports[1]);

  const HangVerdict verdict = judge_hang(reports, 2, 3);

  EXPECT_EQ(verdict.behind, std::vector<int>{1});
  EXPECT_TRUE(says(verdict, "its process does not run")) << verdict.text;
}

TEST(HangVerdict, ARankOfWhichNothingIsKnownIsBehind) {
  RankReports reports;
  reports[0] = waiting("a", 5, {{"a", 5}});

  const HangVerdict verdict = judge_hang(reports, 2, 3);

  EXPECT_EQ(verdict.behind, std::vector<int>{1});
  EXPECT_TRUE(says(verdict, "its node does not answer")) << verdict.text;
}

TEST(HangVerdict, ARankOfWhichNothingIsKnownIsNotNamedBeforeOneThatIsKnownToBeBehind) {
  RankReports reports;
  reports[0] = waiting("a", 5, {{"a", 5}});
  reports[1] = report_of("load", {{"a", 4}});

  const HangVerdict verdict = judge_hang(reports, 4, 3);

  EXPECT_EQ(verdict.behind, std::vector<int>{1});
  EXPECT_TRUE(says(verdict, "; 2 of 4 ranks were never heard of: nodes exchange heartbeats"))
      << verdict.text;
}

TEST(HangVerdict, ANodeThatToldNothingLatelyIsBehind) {
  RankReports reports;
  reports[0] = waiting("a", 5, {{"a", 5}});
  reports[1] = waiting("a", 5, {{"a", 5}});
  reports[1].is_old = true;

  const HangVerdict verdict = judge_hang(reports, 2, 3);

  EXPECT_EQ(verdict.behind, std::vector<int>{1});
  EXPECT_TRUE(says(verdict, "its node does not answer any more")) << verdict.text;
}

TEST(HangVerdict, ARankThatLeftIsBehind) {
  RankReports reports;
  reports[0] = waiting("a", 5, {{"a", 5}});
  reports[1] = report_of("", {{"a", 4}});
  reports[1].state.open.clear();
  reports[1].state.has_left = true;

  const HangVerdict verdict = judge_hang(reports, 2, 3);

  EXPECT_EQ(verdict.behind, std::vector<int>{1});
  EXPECT_TRUE(says(verdict, "it has left the run; 1 rank waits for it, rank 0")) << verdict.text;
}

TEST(HangVerdict, PeersAreWaitedFor) {
  RankReports reports;
  reports[0] = report_of("forward llm.layers.0", {{"link", 7}});
  reports[1] = waiting("link", 7, {{"link", 7}}, {0});

  EXPECT_EQ(judge_hang(reports, 2, 3).behind, std::vector<int>{0});
}

TEST(HangVerdict, ADeadlockNamesItsRing) {
  RankReports reports;
  reports[0] = waiting("a", 5, {{"a", 5}, {"b", 1}});
  reports[1] = waiting("b", 2, {{"a", 4}, {"b", 2}});
  reports[2] = waiting("c", 2, {{"c", 2}}, {0});

  const HangVerdict verdict = judge_hang(reports, 3, 3);

  EXPECT_EQ(verdict.behind, (std::vector<int>{0, 1}));
  EXPECT_TRUE(says(verdict, "ranks wait for each other: rank 0 for rank 1 in backward"))
      << verdict.text;
  EXPECT_TRUE(says(verdict, "rank 1 for rank 0 in")) << verdict.text;
}

TEST(HangVerdict, WhereAllHaveComeNobodyIsBehind) {
  RankReports reports;
  for (int rank : {0, 1}) reports[rank] = waiting("a", 5, {{"a", 5}});

  const HangVerdict verdict = judge_hang(reports, 2, 3);

  EXPECT_TRUE(verdict.behind.empty());
  EXPECT_TRUE(says(verdict, "a fault of the network")) << verdict.text;
}

/// Half of the ranks have not made the call that the others wait for.
RankReports half_behind(int num_ranks) {
  RankReports reports;
  for (int rank = 0; rank < num_ranks / 2; ++rank)
    reports[rank] = waiting("control", 9, {{"control", 9}, {"fsdp", 7}});
  for (int rank = num_ranks / 2; rank < num_ranks; ++rank)
    reports[rank] = report_of("load", {{"control", 8}, {"fsdp", 7}});
  return reports;
}

// Nobody beats while the verdict is found, and the job ends 8 s after the deadline whatever it is.
TEST(HangVerdict, ThousandsOfRanksAreJudgedAtOnce) {
  constexpr int kRanks = 16384;
  const RankReports reports = half_behind(kRanks);
  const Stopwatch clock;
  const HangVerdict verdict = judge_hang(reports, kRanks, 3);
  EXPECT_LT(clock.seconds(), 5) << "pairs of ranks take minutes";

  std::vector<int> behind(kRanks / 2);
  std::iota(behind.begin(), behind.end(), kRanks / 2);
  EXPECT_EQ(verdict.behind, behind);
  EXPECT_TRUE(says(verdict, "8192 ranks wait for it, the first is rank 0 in")) << verdict.text;
  EXPECT_TRUE(says(verdict, "; and 8188 more ranks are behind")) << verdict.text;
  EXPECT_EQ(judge_hang(half_behind(4), 4, 3).behind, (std::vector<int>{2, 3})) << "as of a few";
}

TEST(HangVerdict, RanksThatThereAreNotAreNotWaitedFor) {
  RankReports reports;
  reports[0] = waiting("link", 5, {{"link", 5}}, {7, -1});
  reports[1] = waiting("link", 5, {{"link", 5}}, {0});
  reports[9] = report_of("load", {{"link", 4}});

  EXPECT_EQ(judge_hang(reports, 2, 3).behind, std::vector<int>{0});
}

// Every node says it into one log, where the report cannot be written.
TEST(RankReport, SomeAreDescribedInBoundedLength) {
  constexpr size_t kMost = 10000;
  RankReports reports = half_behind(1000);
  const std::string first = describe_report(700, reports.at(700));
  const std::string text = describe_some(reports, {700, 3, 700, 2000}, kMost);
  EXPECT_EQ(text, "\n" + first + "\n" + describe_report(3, reports.at(3)) +
                      "\nThose of 998 other ranks are left out here.\n");
  std::vector<int> all(1000);
  std::iota(all.begin(), all.end(), 0);
  const std::string cut = describe_some(reports, all, kMost);
  EXPECT_LE(cut.size(), kMost + 100);
  EXPECT_GT(cut.size(), kMost / 2);
  EXPECT_NE(cut.find(" other ranks are left out here."), std::string::npos);
  EXPECT_EQ(describe_some(reports, all, 1 << 30).find("left out"), std::string::npos);
}

TEST(RankReport, TravelsAsJson) {
  RankReports reports;
  reports[3] = waiting("a", 5, {{"a", 5}}, {1, 2});
  reports[3].state.actions = {{"load \"x\"", 5, 9}};
  reports[3].state.calls = {{"barrier", 6, 0}};
  reports[4] = report_of("load", {});
  reports[4].state.has_left = true;

  const RankReports read = reports_from_json(reports_to_json(reports));

  ASSERT_EQ(read.size(), 2);
  for (int rank : {3, 4})
    EXPECT_EQ(describe_report(rank, read.at(rank)), describe_report(rank, reports.at(rank)));
  EXPECT_EQ(read.at(3).state.waits->peers, (std::vector<int>{1, 2}));
  EXPECT_TRUE(read.at(4).state.has_left);
  EXPECT_TRUE(reports_from_json("{\"3\": {\"host\"").empty()) << "half of it";
}

}  // namespace
}  // namespace zea::test_hang_verdict
