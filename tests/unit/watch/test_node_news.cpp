// SPDX-License-Identifier: Apache-2.0
// What nodes tell each other: heads are read without what is behind them, and what is not whole is
// not taken.
#include "watch/node_news.hpp"

#include <gtest/gtest.h>

#include "support/files.hpp"

namespace zea::test_node_news {
namespace {

constexpr int kNode = 8;

class NodeNewsTest : public ::testing::Test {
 protected:
  /// Of eight ranks with all that a record has.
  static NodeNews news(int64_t published) {
    NodeNews news{.published = published, .moves = 12345, .still = 0.25, .told_at = 1.75e9 + 0.1};
    for (int rank = kNode; rank < kNode + 8; ++rank) {
      RankReport& report = news.reports[rank];
      report.host = "node1";
      report.state.step = 7;
      report.state.actions.assign(64, {"backward llm.layers.0", 1, 2});
      report.state.calls.assign(64, {"all_gather 8 float32 #7 of fsdp", 1, 2});
    }
    return news;
  }

  void damage_reports() const {
    std::string text = read_bytes(file_);
    ASSERT_GT(text.size(), 100U * kNewsHeadBytes);
    text.replace(kNewsHeadBytes, std::string::npos, "{\"8\": half of it");
    write_bytes(file_, text);
  }

  std::optional<NodeNews> head() const { return only(read_heads(folder_.path(), {kNode, 16})); }
  std::optional<NodeNews> whole(const std::map<int, int64_t>& known = {}) const {
    return only(read_news(folder_.path(), {kNode, 16}, known));
  }

  static std::optional<NodeNews> only(const std::map<int, NodeNews>& all) {
    EXPECT_LE(all.size(), 1U);
    return all.contains(kNode) ? std::optional(all.at(kNode)) : std::nullopt;
  }

  const TemporaryDirectory folder_;
  const std::string file_ = folder_ / "node-8.json";
};

TEST_F(NodeNewsTest, Travel) {
  EXPECT_FALSE(has_news(folder_.path(), kNode));
  write_news(folder_.path(), kNode, news(3));
  EXPECT_TRUE(has_news(folder_.path(), kNode));

  for (const auto& read : {head(), whole()}) {
    ASSERT_TRUE(read);
    EXPECT_EQ(read->published, 3);
    EXPECT_EQ(read->moves, 12345);
    EXPECT_EQ(read->still, 0.25);
    EXPECT_EQ(read->told_at, 1.75e9 + 0.1);
  }
  EXPECT_EQ(head()->reported, -1);
  EXPECT_TRUE(head()->reports.empty());
  EXPECT_EQ(whole()->reported, 3);
  EXPECT_EQ(describe_report(9, whole()->reports.at(9)), describe_report(9, news(3).reports.at(9)));
}

// Every node reads those of all others, every so often, also while all is well.
TEST_F(NodeNewsTest, HeadsAreReadWithoutWhatIsBehindThem) {
  write_news(folder_.path(), kNode, news(3));
  damage_reports();
  ASSERT_TRUE(head());
  EXPECT_EQ(head()->published, 3);
  ASSERT_TRUE(whole());
  EXPECT_EQ(whole()->reported, -1) << "reports that are not whole";

  std::filesystem::resize_file(file_, kNewsHeadBytes);
  ASSERT_TRUE(head());
  EXPECT_EQ(head()->moves, 12345);
}

TEST_F(NodeNewsTest, ReportsThatAreKnownAreNotReadAgain) {
  write_news(folder_.path(), kNode, news(3));
  EXPECT_EQ(whole({{kNode, 3}})->reported, -1);
  EXPECT_EQ(whole({{kNode, 2}})->reported, 3);
}

TEST_F(NodeNewsTest, AHeadThatIsHalfWrittenIsNone) {
  NodeNews last = news(99);
  last.still = 1234.5678;
  write_news(folder_.path(), kNode, last);
  const std::string old = read_bytes(file_);
  write_news(folder_.path(), kNode, news(100));
  const std::string text = read_bytes(file_);
  for (const int bytes : {0, 1, 16, 30, 100, kNewsHeadBytes - 100, kNewsHeadBytes - 1}) {
    write_bytes(file_, text.substr(0, bytes));
    EXPECT_FALSE(head()) << bytes;
    write_bytes(file_, text.substr(0, bytes) + old.substr(bytes));
    EXPECT_TRUE(!head() || head()->published != 100 || head()->still == 0.25) << bytes;
  }
  write_bytes(file_, text);
  EXPECT_TRUE(head());
  remove_news(folder_.path());
  EXPECT_FALSE(has_news(folder_.path(), kNode));
}

}  // namespace
}  // namespace zea::test_node_news
