// SPDX-License-Identifier: Apache-2.0
// Signals, files and the wall limit ask once, and nothing that comes late ends the process.
#include "train/stop_request.hpp"

#include <gtest/gtest.h>

#include <csignal>

#include "support/files.hpp"

namespace zea::test_stop_request {
namespace {

TEST(StopRequest, SignalsAskOnce) {
  StopRequest stop("", false, 0);
  std::raise(SIGUSR1);
  std::raise(SIGUSR2);
  std::raise(SIGTERM);

  const StepFlags asked = stop.poll(0), again = stop.poll(0);

  EXPECT_EQ(asked.save, 1);
  EXPECT_EQ(asked.leave, 2);
  EXPECT_EQ(again.save + again.leave, 0);
}

/// The run starts again after a damaged checkpoint.
TEST(StopRequest, SignalsBetweenTwoStartsAreHeard) {
  const StopSignals signals;
  { const StopRequest first("", false, 0); }
  std::raise(SIGUSR2);
  StopRequest second("", false, 0);
  EXPECT_EQ(second.poll(0).leave, 1);
}

TEST(StopRequest, TheWallLimitRunsFromTheStartThatItIsTold) {
  const auto begin = std::chrono::steady_clock::now() - std::chrono::seconds(60);
  StopRequest stop(".", true, 100, begin);
  EXPECT_EQ(stop.poll(30).leave, 0);
  EXPECT_EQ(stop.poll(50).leave, 1);
}

TEST(StopRequest, ARunThatHasNotSavedSavesOnceWhenHalfOfItsTimeIsOver) {
  const auto ago = [](int seconds) {
    return std::chrono::steady_clock::now() - std::chrono::seconds(seconds);
  };
  EXPECT_EQ(StopRequest(".", true, 100, ago(40)).poll(0, false).save, 0);
  EXPECT_EQ(StopRequest(".", true, 100, ago(60)).poll(0, true).save, 0);
  EXPECT_EQ(StopRequest(".", true, 0, ago(60)).poll(0, false).save, 0) << "no limit";
  EXPECT_EQ(StopRequest(".", false, 100, ago(60)).poll(0, false).save, 0) << "the root rank asks";
  StopRequest stop(".", true, 100, ago(60));
  EXPECT_EQ(stop.poll(0, false).save, 1);
  EXPECT_EQ(stop.poll(0, false).save, 0) << "also where the save fails";
}

TEST(StopRequest, WhoAsksWhetherToLeaveTakesNothing) {
  const TemporaryDirectory folder;
  StopRequest stop(folder.path(), true, 0), other(folder.path(), false, 0);
  EXPECT_FALSE(stop.is_exit_requested(1000));
  std::ofstream(folder / "STOP").close();
  EXPECT_TRUE(stop.is_exit_requested(0));
  EXPECT_FALSE(other.is_exit_requested(0)) << "the root rank looks for files";
  EXPECT_EQ(stop.poll(0).leave, 1);
  EXPECT_FALSE(stop.is_exit_requested(0));
  std::raise(SIGUSR2);
  EXPECT_TRUE(other.is_exit_requested(0));
  EXPECT_EQ(other.poll(0).leave, 1);

  const auto begin = std::chrono::steady_clock::now() - std::chrono::seconds(60);
  const StopRequest timed(folder.path(), true, 100, begin);
  EXPECT_FALSE(timed.is_exit_requested(30));
  EXPECT_TRUE(timed.is_exit_requested(50));
}

TEST(StopRequest, ASignalThatFindsASaveAgreedUponIsServedByIt) {
  StopRequest stop("", false, 0);

  EXPECT_EQ(stop.poll(0).save, 0);
  std::raise(SIGUSR1);
  stop.serve_save();
  EXPECT_EQ(stop.poll(0).save, 0);
  std::raise(SIGUSR1);
  EXPECT_EQ(stop.poll(0).save, 1) << "the next one is another request";
}

TEST(StopRequest, ASignalThatOtherRanksHadIsOnItsWay) {
  StopRequest stop("", false, 0);

  EXPECT_EQ(stop.poll(0).save, 0);
  stop.serve_save(3600);
  EXPECT_EQ(stop.poll(0).save, 0);
  std::raise(SIGUSR1);
  EXPECT_EQ(stop.poll(0).save, 0);
  std::raise(SIGUSR1);
  EXPECT_EQ(stop.poll(0).save, 1) << "the next one is another request";
}

TEST(StopRequest, ASignalThatComesMuchLaterIsAnother) {
  StopRequest stop("", false, 0);

  stop.serve_save(0);
  std::raise(SIGUSR1);

  EXPECT_EQ(stop.poll(0).save, 1);
}

TEST(StopRequest, ARankThatHadTheSignalExpectsNone) {
  StopRequest stop("", false, 0);

  std::raise(SIGUSR1);
  EXPECT_EQ(stop.poll(0).save, 1);
  stop.serve_save();
  std::raise(SIGUSR1);

  EXPECT_EQ(stop.poll(0).save, 1);
}

TEST(StopRequest, FilesAskTheRootOnce) {
  const TemporaryDirectory run;
  StopRequest root(run.path(), true, 0), other(run.path(), false, 0);
  write_bytes(run / "SAVE", "");
  write_bytes(run / "STOP", "");

  EXPECT_EQ(other.poll(0).save, 0);
  EXPECT_EQ(root.note(), "");
  const StepFlags asked = root.poll(0), again = root.poll(0);

  EXPECT_EQ(asked.save, 1);
  EXPECT_EQ(asked.leave, 1);
  EXPECT_EQ(again.save + again.leave, 0);
  EXPECT_EQ(root.note(), "found the file STOP in " + run.path() + ": leaving");
  EXPECT_EQ(other.note(), "");
}

TEST(StopRequest, ASignalIsNotTakenForAStopFile) {
  const TemporaryDirectory run;
  StopRequest root(run.path(), true, 0);

  std::raise(SIGTERM);

  EXPECT_EQ(root.poll(0).leave, 1);
  EXPECT_EQ(root.note(), "");
}

TEST(StopRequest, ASignalAfterAFileIsAnotherRequest) {
  const TemporaryDirectory run;
  StopRequest root(run.path(), true, 0);
  write_bytes(run / "SAVE", "");

  EXPECT_EQ(root.poll(0).save, 1);
  root.serve_save();
  std::raise(SIGUSR1);

  EXPECT_EQ(root.poll(0).save, 1);
}

TEST(StopRequest, TheWallLimitLeavesTimeToSave) {
  StopRequest limited("", true, 1000), free("", true, 0);

  EXPECT_EQ(limited.poll(500).leave, 0);
  EXPECT_EQ(limited.poll(1001).leave, 1);
  EXPECT_EQ(free.poll(1e9).leave, 0);
}

TEST(StopRequest, ASignalThatComesWhenTheRunIsOverEndsNothing) {
  { const StopRequest stop("", false, 0); }
  std::raise(SIGUSR1);
  std::raise(SIGUSR2);
  const StopRequest next("", false, 0);
}

}  // namespace
}  // namespace zea::test_stop_request
