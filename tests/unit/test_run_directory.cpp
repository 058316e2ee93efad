// SPDX-License-Identifier: Apache-2.0
#include "zea/train/run_directory.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/files.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

/// The directory of a run that another process locked and left without giving the lock back.
class Left {
 public:
  Left() {
    child_ = fork();
    if (child_ == 0) {
      const RunDirectory held(path());
      _exit(0);  // as a killed run: no destructor
    }
    siginfo_t ended;
    waitid(P_PID, static_cast<id_t>(child_), &ended, WEXITED | WNOWAIT);  // it stays a zombie
  }
  ~Left() { collect(); }

  std::string path() const { return folder_ / "run"; }
  std::string lock() const { return path() + "/LOCK"; }
  void collect() {
    if (child_ > 0) waitpid(child_, nullptr, 0);
    child_ = 0;
  }
  void rewrite_line(int number, const std::string& line) const {
    std::istringstream lines(read_bytes(lock()));
    std::ofstream file(lock());
    std::string text;
    for (int i = 0; std::getline(lines, text); ++i) file << (i == number ? line : text) << "\n";
  }

 private:
  TemporaryDirectory folder_;
  pid_t child_ = 0;
};

constexpr int kHostLine = 0, kProcessLine = 1;

TEST(RunDirectory, RefusesASecondRunAndGivesTheLockBack) {
  const TemporaryDirectory folder;
  const std::string path = folder / "run";
  {
    const RunDirectory first(path);
    EXPECT_THROW(RunDirectory second(path), StorageError);
    EXPECT_TRUE(std::filesystem::exists(path + "/LOCK"));
  }
  EXPECT_FALSE(std::filesystem::exists(path + "/LOCK"));
  EXPECT_EQ(RunDirectory(path).note(), "");
}

TEST(RunDirectory, TakesOverTheLockOfADeadProcess) {
  Left left;
  left.collect();
  EXPECT_NE(RunDirectory(left.path()).note(), "");
}

TEST(RunDirectory, TakesOverTheLockOfAProcessThatNobodyCollected) {
  const Left left;
  EXPECT_NE(RunDirectory(left.path()).note(), "");
}

TEST(RunDirectory, TakesOverTheLockWhoseProcessNumberIsInUseAgain) {
  const Left left;
  left.rewrite_line(kProcessLine, "1");
  EXPECT_NE(RunDirectory(left.path()).note(), "");
}

TEST(RunDirectory, CannotKnowAboutAnotherHost) {
  const Left left;
  left.rewrite_line(kHostLine, "elsewhere");
  EXPECT_THROW(RunDirectory(left.path()), StorageError);
}

TEST(RunDirectory, TakesOverTheLockThatItsOwnJobLeftOnAnotherHost) {
  setenv("SLURM_JOB_ID", "1234", 1);
  const Left left;
  left.rewrite_line(kHostLine, "elsewhere");
  EXPECT_NE(RunDirectory(left.path()).note(), "");
  unsetenv("SLURM_JOB_ID");
}

}  // namespace
}  // namespace zea
