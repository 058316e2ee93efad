// SPDX-License-Identifier: Apache-2.0
// The ranks that keep a run from going on, judged from reports; and reports as JSON and text.
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

/// A verdict names the ranks that are behind, and says all of the sentences.
void expect_verdict(const RankReports& reports, int num_ranks, const std::vector<int>& behind,
                    const std::vector<std::string>& sentences = {}) {
  const HangVerdict verdict = judge_hang(reports, num_ranks, 3);
  EXPECT_EQ(verdict.behind, behind);
  for (const std::string& sentence : sentences)
    EXPECT_NE(verdict.text.find(sentence), std::string::npos) << verdict.text;
}

TEST(HangVerdict, ARankThatHasNotMadeTheCallIsBehind) {
  RankReports reports;
  reports[0] = reports[1] = waiting("control", 9, {{"control", 9}});
  reports[2] = report_of("load", {{"control", 8}});
  expect_verdict(reports, 3, {2},
                 {"rank 2 (node1, process 42, step 3) is behind: it is in load (for 20.0 s)",
                  "2 ranks wait for it, the first is rank 0 in backward llm.head, in it "
                  "wait for all_reduce of control (for 15.0 s)"});
}

TEST(HangVerdict, SaysWhatADeviceWaitsFor) {
  RankReports reports;
  reports[0] = report_of("read the loss", {{"fsdp", 7}});
  reports[0].state.waits = {"fsdp", 7, {}};
  reports[0].state.on_device = {"all_gather 8 float32 #7 of fsdp", kNow - 30 * kSecond, 0};
  reports[1] = report_of("load", {{"fsdp", 6}});
  expect_verdict(reports_from_json(reports_to_json(reports)), 2, {1},
                 {"rank 0 in read the loss (for 20.0 s), its device in all_gather 8 float32 #7 of "
                  "fsdp"});
}

TEST(HangVerdict, OnlyTheRankAtTheEndOfAChainIsBehind) {
  RankReports reports;
  reports[0] = waiting("a", 5, {{"a", 5}});
  reports[1] = waiting("b", 2, {{"a", 4}, {"b", 2}});
  reports[2] = report_of("optimizer", {{"b", 1}});
  expect_verdict(reports, 3, {2});
}

TEST(HangVerdict, ARankThatDoesNotRunIsBehindWhereverItWas) {
  RankReports reports;
  reports[0] = reports[1] = waiting("a", 5, {{"a", 5}});
  reports[1].state.heartbeat = kNow - 10 * kSecond;
  expect_verdict(reports, 2, {1}, {"its process does not run"});

  reports[1] = reports[0];
  reports[1].is_old = true;
  expect_verdict(reports, 2, {1}, {"its node does not answer any more"});

  reports[1] = report_of("", {{"a", 4}});
  reports[1].state.open.clear();
  reports[1].state.has_left = true;
  expect_verdict(reports, 2, {1}, {"it has left the run; 1 rank waits for it, rank 0"});
}

TEST(HangVerdict, AnUnknownRankIsBehindUnlessAKnownOneIs) {
  RankReports reports;
  reports[0] = waiting("a", 5, {{"a", 5}});
  expect_verdict(reports, 2, {1}, {"its node does not answer"});

  reports[1] = report_of("load", {{"a", 4}});
  expect_verdict(reports, 4, {1},
                 {"; 2 of 4 ranks were never heard of: nodes exchange heartbeats"});
}

TEST(HangVerdict, PeersAreWaitedFor) {
  RankReports reports;
  reports[0] = report_of("forward llm.layers.0", {{"link", 7}});
  reports[1] = waiting("link", 7, {{"link", 7}}, {0});
  expect_verdict(reports, 2, {0});
}

TEST(HangVerdict, ADeadlockNamesItsRing) {
  RankReports reports;
  reports[0] = waiting("a", 5, {{"a", 5}, {"b", 1}});
  reports[1] = waiting("b", 2, {{"a", 4}, {"b", 2}});
  reports[2] = waiting("c", 2, {{"c", 2}}, {0});
  expect_verdict(
      reports, 3, {0, 1},
      {"ranks wait for each other: rank 0 for rank 1 in backward", "rank 1 for rank 0 in"});
}

TEST(HangVerdict, WhereAllHaveComeNobodyIsBehind) {
  RankReports reports;
  reports[0] = reports[1] = waiting("a", 5, {{"a", 5}});
  expect_verdict(reports, 2, {}, {"a fault of the network"});
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
  std::vector<int> behind(kRanks / 2);
  std::iota(behind.begin(), behind.end(), kRanks / 2);
  const Stopwatch clock;
  expect_verdict(
      reports, kRanks, behind,
      {"8192 ranks wait for it, the first is rank 0 in", "; and 8188 more ranks are behind"});
  EXPECT_LT(clock.seconds(), 5) << "pairs of ranks take minutes";
  expect_verdict(half_behind(4), 4, {2, 3});
}

TEST(HangVerdict, RanksThatDoNotExistAreNotWaitedFor) {
  RankReports reports;
  reports[0] = waiting("link", 5, {{"link", 5}}, {7, -1});
  reports[1] = waiting("link", 5, {{"link", 5}}, {0});
  reports[9] = report_of("load", {{"link", 4}});

  expect_verdict(reports, 2, {0});
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

TEST(RankReport, IsTheSameAfterJson) {
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
