// SPDX-License-Identifier: Apache-2.0
// The watchdog of ranks that hang on purpose, on one node and where each rank is a node of its own:
// who is named, and that a rank that is slow is left alone.
#include "watch/watchdog.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "comm/recorded_collectives.hpp"
#include "core/system.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"

namespace zea::testing::test_watchdog {
namespace {

constexpr double kDeadline = 1;
constexpr double kPatient = 2.5;    ///< deadline of a rank that is left alone
constexpr double kNever = 3600;     ///< deadline that no test comes to
constexpr double kFileSeconds = 8;  ///< that files may take after the deadline

constexpr const char* kOtherHasTold = "the run hangs, as another node has reported";

bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// Whether every rank is on a node of its own.
class WatchdogTest : public ::testing::TestWithParam<bool> {
 protected:
  WatchdogTest()
      : ranks_(world().communicator()),
        records_(NodeMemory::build(ranks_, static_cast<int64_t>(ActionRecord::memory_bytes()),
                                   GetParam() ? ranks_.rank() : 0)),
        record_(records_.own()),
        real_(make_mpi_collectives(ranks_)),
        control_(make_recorded_collectives(*real_, record_, "control")),
        directory_(ranks_) {}

  /// `folder`: of the run, as this rank sees it.
  void make_watchdog(const std::string& folder, double deadline = kDeadline) {
    directory_.barrier();
    watchdog_.emplace(records_, record_,
                      WatchdogOptions{deadline, folder, ranks_.size(),
                                      [this](const std::string& message) { note(message); }});
  }

  void start() { start(directory_.path()); }

  void start(const std::string& folder, double deadline = kDeadline) {
    make_watchdog(folder, deadline);
    watchdog_->use_directory();
  }

  /// All in one piece: others wait for it.
  void note(const std::string& message) const {
    const std::string own = std::to_string(ranks_.rank());
    const auto write = [&](const std::string& name) {
      std::ofstream(directory_ / ("noting-" + own)) << message;
      std::filesystem::rename(directory_ / ("noting-" + own), directory_ / name);
    };
    write("message-" + own);
    if (!says(message, kOtherHasTold)) write("message");
  }

  /// Returns the full message that any rank, or rank `by`, received; empty after `seconds` of
  /// silence.
  std::string message_within(double seconds, std::optional<int> by = std::nullopt) const {
    const Stopwatch clock;
    while (clock.seconds() < seconds) {
      if (std::ifstream file(directory_ / ("message" + (by ? "-" + std::to_string(*by) : "")));
          file)
        return {std::istreambuf_iterator<char>(file), {}};
      sleep_seconds(0.01);
    }
    return "";
  }

  /// Returns the messages of all ranks, by rank, after every rank has stopped.
  std::vector<std::string> messages_of_a_hang() {
    {
      const ActionRecord::Action action(record_, "load");
      message_within(kDeadline + kFileSeconds, is_of_several_nodes() ? ranks_.rank() : 0);
    }
    watchdog_.reset();
    directory_.barrier();
    std::vector<std::string> messages;
    for (int rank = 0; rank < ranks_.size(); ++rank) messages.push_back(message_within(0.01, rank));
    directory_.barrier();
    return messages;
  }

  static bool is_of_several_nodes() { return GetParam(); }

  void all_reduce() {
    double value = 1;
    control_->all_reduce(&value, 1, DType::Float64, ReduceOp::Sum).wait();
  }

  int last() const { return ranks_.size() - 1; }

  const Communicator ranks_;
  const NodeMemory records_;
  ActionRecord record_;
  const std::unique_ptr<Collectives> real_, control_;
  const SharedDirectory directory_;
  std::optional<Watchdog> watchdog_;
};

TEST_P(WatchdogTest, ARankThatMissesACollectiveIsNamed) {
  start();
  record_.begin_step(4);
  all_reduce();
  std::string message;
  {
    const ActionRecord::Action action(record_, "reduce_shard llm.layers.0");
    if (ranks_.rank() != last())
      all_reduce();
    else
      message = message_within(kDeadline + 10);
  }
  if (ranks_.rank() == last()) all_reduce();  // too late, but it lets the test end
  watchdog_.reset();

  if (ranks_.rank() != last()) return;
  const std::string name = "rank " + std::to_string(last()) + " (";
  EXPECT_NE(message.find("for 1 s (run.watchdog_seconds) nothing began or ended"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find(name), std::string::npos) << message;
  EXPECT_NE(message.find("step 4) is behind: it is in reduce_shard llm.layers.0"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("rank 0 in"), std::string::npos) << message;
  EXPECT_NE(message.find("all_reduce 1 float64 #2 of control"), std::string::npos) << message;
  std::ifstream file(directory_ / "watchdog/report.txt");
  const std::string report{std::istreambuf_iterator<char>(file), {}};
  for (int rank = 0; rank < ranks_.size(); ++rank)
    EXPECT_NE(report.find("\nrank " + std::to_string(rank) + " on "), std::string::npos) << report;
}

TEST_P(WatchdogTest, ARankThatIsStoppedIsNamed) {
  start();
  std::vector<int32_t> processes(ranks_.size());
  const int32_t own = getpid();
  real_->all_gather(&own, processes.data(), Counts(ranks_.size(), 1), DType::Int32).wait();
  sleep_seconds(0.3 * kDeadline);  // so that nodes know each other
  std::string message;
  if (ranks_.rank() == last()) {
    const ActionRecord::Action action(record_, "load");
    raise(SIGSTOP);
  } else {
    message = message_within(kDeadline + 10);
    sleep_seconds(0.5);  // a peer may have its word yet
    if (ranks_.rank() == 0) kill(processes[last()], SIGCONT);
  }
  all_reduce();
  watchdog_.reset();

  if (ranks_.rank() == last()) return;
  EXPECT_NE(message.find("rank " + std::to_string(last()) + " ("), std::string::npos) << message;
  EXPECT_NE(message.find(GetParam() ? "its node does not answer any more"
                                    : "is behind: its process does not run"),
            std::string::npos)
      << message;
  EXPECT_EQ(message.find("rank 0 ("), std::string::npos) << message;
}

TEST_P(WatchdogTest, RanksThatWaitForEachOtherAreNamed) {
  if (ranks_.size() != 2) GTEST_SKIP() << "of two ranks";
  start();
  std::string message;
  const int other = 1 - ranks_.rank();
  double received = 0, sent = 1;
  Pending pending = control_->recv(&received, 1, DType::Float64, other);
  std::thread frees([&] { message = message_within(kDeadline + 10); });
  // A send on the bare communicator, which only comes when the watchdog has spoken.
  {
    const ActionRecord::Action action(record_, "wait_output llm.layers.1");
    const ActionRecord::Call call = record_.begin_call(record_.add_group("link"), "recv");
    const ActionRecord::Wait wait(record_, call, {{other}});
    frees.join();
  }
  real_->send(&sent, 1, DType::Float64, other).wait();
  pending.wait();
  watchdog_.reset();

  EXPECT_NE(message.find("ranks wait for each other: rank 0 for rank 1 in wait_output"),
            std::string::npos)
      << message;
}

TEST_P(WatchdogTest, ASlowRankIsLeftAlone) {
  start(directory_.path(), kPatient);
  if (ranks_.rank() == last())
    for (int i = 0; i < 3; ++i) {
      const ActionRecord::Action action(record_, "forward llm.layers.0");
      sleep_seconds(0.5 * kPatient);
    }
  all_reduce();  // for which the others have waited longer than that
  watchdog_.reset();
  directory_.barrier();

  EXPECT_EQ(message_within(0.05), "");
}

TEST_P(WatchdogTest, OneReportIsForAllNodes) {
  start();
  const std::vector<std::string> messages = messages_of_a_hang();

  int full = 0;
  for (const std::string& message : messages) {
    if (!is_of_several_nodes() && message.empty()) continue;  // one rank speaks for a node
    const bool is_full = says(message, "is behind: it is in load");
    full += is_full;
    EXPECT_TRUE(is_full || says(message, kOtherHasTold)) << message;
    EXPECT_TRUE(says(message, "are in " + (directory_ / "watchdog/report.txt"))) << message;
  }
  EXPECT_EQ(full, 1);
}

TEST_P(WatchdogTest, BeforeThereIsADirectoryEveryNodeTellsWhatItKnows) {
  make_watchdog(directory_ / "not yet");
  const std::vector<std::string> messages = messages_of_a_hang();

  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const std::string& message = messages[rank];
    if (!is_of_several_nodes() && rank > 0) continue;
    EXPECT_TRUE(says(message, "rank " + std::to_string(rank) + " (")) << message;
    EXPECT_TRUE(says(message, "follow, since the run directory is not open yet")) << message;
    EXPECT_TRUE(says(message, "under way:\n")) << message;
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ / "not yet"));
}

// A FIFO that nobody opens at its other end, in place of a file that is read or written.
TEST_P(WatchdogTest, FilesThatHangDoNotKeepTheRunFromEnding) {
  const std::string folder = directory_ / ("of rank " + std::to_string(ranks_.rank()));
  std::filesystem::create_directories(folder + "/watchdog");
  start(folder);
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    const std::string file = folder + "/watchdog/node-" + std::to_string(rank) + ".json";
    ASSERT_EQ(mkfifo((file + ".fifo").c_str(), 0600), 0);
    std::filesystem::rename(file + ".fifo", file);  // at once: the watchdog writes it anew
  }
  ASSERT_EQ(mkfifo((folder + "/watchdog/report.txt").c_str(), 0600), 0);
  const std::vector<std::string> messages = messages_of_a_hang();

  for (int rank = 0; rank < ranks_.size(); ++rank) {
    if (!is_of_several_nodes() && rank > 0) continue;
    EXPECT_TRUE(says(messages[rank], "is behind: it is in load")) << messages[rank];
    EXPECT_TRUE(says(messages[rank], "cannot be written: the file system does not answer"))
        << messages[rank];
    EXPECT_TRUE(says(messages[rank], "under way:\n")) << messages[rank];
  }
}

TEST_P(WatchdogTest, NodesThatDoNotShareADirectoryAreNotHeardOf) {
  const std::string own = directory_ / ("of rank " + std::to_string(ranks_.rank()));
  start(is_of_several_nodes() ? own : directory_.path());
  directory_.barrier();
  EXPECT_EQ(watchdog_->sees_first_node(), !is_of_several_nodes() || ranks_.rank() == 0);
  const std::vector<std::string> messages = messages_of_a_hang();

  if (!is_of_several_nodes()) return;
  const std::string others = std::to_string(last()) + " of " + std::to_string(ranks_.size());
  for (const std::string& message : messages)
    EXPECT_TRUE(says(message, others + " ranks were never heard of")) << message;
}

TEST_P(WatchdogTest, NodesThatShareADirectoryHearOfEachOther) {
  start(directory_.path(), kNever);  // nor is anything told again, which clearing would meet
  directory_.barrier();
  EXPECT_TRUE(watchdog_->sees_first_node());
  directory_.barrier();
  if (ranks_.rank() == 0) watchdog_->clear_directory();
  directory_.barrier();
  EXPECT_EQ(watchdog_->sees_first_node(), !is_of_several_nodes()) << "what an earlier start told";
}

TEST(LimitStart, EndsWhatDoesNotGoOnInTime) {
  std::promise<std::string> told;
  const std::jthread limit =
      limit_start(0.05, [&](const std::string& message) { told.set_value(message); });

  EXPECT_TRUE(says(told.get_future().get(), "0.05 s after it began, not every rank has read"));
}

TEST(LimitStart, LeavesAloneWhatGoesOn) {
  bool is_told = false;
  {
    const std::jthread limit = limit_start(30, [&](const std::string&) { is_told = true; });
  }

  EXPECT_FALSE(is_told);
}

INSTANTIATE_TEST_SUITE_P(Nodes, WatchdogTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "EachRankItsOwn" : "One"; });

}  // namespace
}  // namespace zea::testing::test_watchdog
