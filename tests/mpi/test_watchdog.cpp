// SPDX-License-Identifier: Apache-2.0
// The watchdog of ranks that hang on purpose, on one node and where each rank is a node of its own:
// who is named, and that a rank that is slow is left alone.
#include "zea/train/watchdog.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "zea/comm/recorded_collectives.hpp"
#include "zea/core/stopwatch.hpp"

namespace zea::testing {
namespace {

constexpr double kDeadline = 1;

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

  void start() {
    directory_.barrier();
    watchdog_.emplace(records_, record_,
                      WatchdogOptions{kDeadline, directory_.path(), ranks_.size(),
                                      [this](const std::string& message) {
                                        // All in one piece: others wait for it.
                                        std::ofstream(directory_ / "told.tmp") << message;
                                        std::filesystem::rename(directory_ / "told.tmp",
                                                                directory_ / "message");
                                      }});
  }

  /// What any rank was told; empty after `seconds` of silence.
  std::string message_within(double seconds) const {
    const Stopwatch clock;
    while (clock.seconds() < seconds) {
      if (std::ifstream file(directory_ / "message"); file)
        return {std::istreambuf_iterator<char>(file), {}};
      sleep_seconds(0.01);
    }
    return "";
  }

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
  start();
  if (ranks_.rank() == last())
    for (int i = 0; i < 5; ++i) {
      const ActionRecord::Action action(record_, "forward llm.layers.0");
      sleep_seconds(0.6 * kDeadline);
    }
  all_reduce();  // for which the others have waited several deadlines
  watchdog_.reset();
  directory_.barrier();

  EXPECT_EQ(message_within(0.05), "");
}

INSTANTIATE_TEST_SUITE_P(Nodes, WatchdogTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "EachRankItsOwn" : "One"; });

}  // namespace
}  // namespace zea::testing
