// SPDX-License-Identifier: Apache-2.0
// Heartbeats of nodes: heads are read without the reports after them, and incomplete data is
// ignored. One node writes the report of a hang, and the others learn whether it is complete.
#include "watch/heartbeat.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <iterator>

#include "core/error.hpp"
#include "support/files.hpp"

namespace zea::test_heartbeat {
namespace {

constexpr int kNode = 8;

class HeartbeatTest : public ::testing::Test {
 protected:
  /// Records of eight ranks with all fields.
  static Heartbeat heartbeat(int64_t published) {
    Heartbeat heartbeat{
        .published = published, .moves = 12345, .still = 0.25, .written_at = 1.75e9 + 0.1};
    for (int rank = kNode; rank < kNode + 8; ++rank) {
      RankReport& report = heartbeat.reports[rank];
      report.host = "node1";
      report.state.step = 7;
      report.state.actions.assign(64, {"backward llm.layers.0", 1, 2});
      report.state.calls.assign(64, {"all_gather 8 float32 #7 of fsdp", 1, 2});
    }
    return heartbeat;
  }

  void damage_reports() const {
    std::string text = read_bytes(file_);
    ASSERT_GT(text.size(), 100U * kHeartbeatHeadBytes);
    text.replace(kHeartbeatHeadBytes, std::string::npos, "{\"8\": half of it");
    write_bytes(file_, text);
  }

  std::optional<Heartbeat> head() const { return only(read_heads(folder_.path(), {kNode, 16})); }
  std::optional<Heartbeat> whole(const std::map<int, int64_t>& known = {}) const {
    return only(read_heartbeats(folder_.path(), {kNode, 16}, known));
  }

  static std::optional<Heartbeat> only(const std::map<int, Heartbeat>& all) {
    EXPECT_LE(all.size(), 1U);
    return all.contains(kNode) ? std::optional(all.at(kNode)) : std::nullopt;
  }

  const TemporaryDirectory folder_;
  const std::string file_ = folder_ / "node-8.json";
};

TEST_F(HeartbeatTest, IsReadAsItWasWritten) {
  EXPECT_FALSE(has_heartbeat(folder_.path(), kNode));
  write_heartbeat(folder_.path(), kNode, heartbeat(3));
  EXPECT_TRUE(has_heartbeat(folder_.path(), kNode));

  for (const auto& read : {head(), whole()}) {
    ASSERT_TRUE(read);
    EXPECT_EQ(read->published, 3);
    EXPECT_EQ(read->moves, 12345);
    EXPECT_EQ(read->still, 0.25);
    EXPECT_EQ(read->written_at, 1.75e9 + 0.1);
  }
  EXPECT_EQ(head()->reported, -1);
  EXPECT_TRUE(head()->reports.empty());
  EXPECT_EQ(whole()->reported, 3);
  EXPECT_EQ(describe_report(9, whole()->reports.at(9)),
            describe_report(9, heartbeat(3).reports.at(9)));
}

// Every node reads those of all others, every so often, also while all is well.
TEST_F(HeartbeatTest, HeadsAreReadWithoutReports) {
  write_heartbeat(folder_.path(), kNode, heartbeat(3));
  damage_reports();
  ASSERT_TRUE(head());
  EXPECT_EQ(head()->published, 3);
  ASSERT_TRUE(whole());
  EXPECT_EQ(whole()->reported, -1) << "reports that are not whole";

  std::filesystem::resize_file(file_, kHeartbeatHeadBytes);
  ASSERT_TRUE(head());
  EXPECT_EQ(head()->moves, 12345);
}

TEST_F(HeartbeatTest, ReportsThatAreKnownAreNotReadAgain) {
  write_heartbeat(folder_.path(), kNode, heartbeat(3));
  EXPECT_EQ(whole({{kNode, 3}})->reported, -1);
  EXPECT_EQ(whole({{kNode, 2}})->reported, 3);
}

TEST_F(HeartbeatTest, AHeadThatIsHalfWrittenIsNone) {
  Heartbeat last = heartbeat(99);
  last.still = 1234.5678;
  write_heartbeat(folder_.path(), kNode, last);
  const std::string old = read_bytes(file_);
  write_heartbeat(folder_.path(), kNode, heartbeat(100));
  const std::string text = read_bytes(file_);
  for (const int bytes : {0, 1, 16, 30, 100, kHeartbeatHeadBytes - 100, kHeartbeatHeadBytes - 1}) {
    write_bytes(file_, text.substr(0, bytes));
    EXPECT_FALSE(head()) << bytes;
    write_bytes(file_, text.substr(0, bytes) + old.substr(bytes));
    EXPECT_TRUE(!head() || head()->published != 100 || head()->still == 0.25) << bytes;
  }
  write_bytes(file_, text);
  EXPECT_TRUE(head());
  remove_heartbeats(folder_.path());
  EXPECT_FALSE(has_heartbeat(folder_.path(), kNode));
}

class HangReportTest : public ::testing::Test {
 protected:
  std::string report() const {
    std::ifstream file(hang_report_path(directory_));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TemporaryDirectory folder_;
  const std::string directory_ = folder_ / "watchdog";
};

TEST_F(HangReportTest, TheFirstOneWritesIt) {
  EXPECT_EQ(write_hang_report(directory_, "of one", 5), HangReport::Written);
  EXPECT_EQ(write_hang_report(directory_, "of another", 5), HangReport::ByAnother);
  EXPECT_EQ(report(), "of one");
}

TEST_F(HangReportTest, OneThatIsBegunIsWaitedFor) {
  std::filesystem::create_directories(directory_);
  std::ofstream(directory_ + "/told");
  EXPECT_EQ(write_hang_report(directory_, "x", 0.02), HangReport::HalfWritten);

  auto waiting =
      std::async(std::launch::async, [&] { return write_hang_report(directory_, "x", 30); });
  std::ofstream(directory_ + "/told") << "written\n";
  EXPECT_EQ(waiting.get(), HangReport::ByAnother);
}

TEST_F(HangReportTest, SaysWhatCannotBeWritten) {
  std::filesystem::create_directories(hang_report_path(directory_));  // a folder in its place

  EXPECT_THROW(write_hang_report(directory_, "x", 5), StorageError);
}

}  // namespace
}  // namespace zea::test_heartbeat
