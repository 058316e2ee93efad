// SPDX-License-Identifier: Apache-2.0
#include "train/run_directory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/system.hpp"
#include "support/files.hpp"

/// Delays locks, so that unsynchronized starts interfere with each other.
extern "C" int unlink(const char* path) noexcept {
  if (std::string_view(path).ends_with("/LOCK")) usleep(20000);
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

namespace zea::test_run_directory {
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

constexpr int kHostLine = 0, kProcessLine = 1, kStartedLine = 2, kProcessSpaceLine = 4,
              kBootLine = 6, kMachineLine = 7;

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

TEST(RunDirectory, CannotKnowAboutAContainerOfTheSameHostName) {
  const Left left;
  left.rewrite_line(kProcessSpaceLine, "pid:[1]");
  EXPECT_THROW(RunDirectory(left.path()), StorageError);
}

/// A lock of an earlier zea does not say which it is.
TEST(RunDirectory, CannotKnowAboutAnotherMachineOfTheSameHostName) {
  for (const char* other : {"another's", ""}) {
    const Left left;
    left.rewrite_line(kBootLine, other);
    left.rewrite_line(kMachineLine, other);
    EXPECT_THROW(RunDirectory(left.path()), StorageError) << other;
  }
}

/// Whatever has the process's number now.
TEST(RunDirectory, TakesOverTheLockOfBeforeTheMachineStartedAgain) {
  const char* const id = "/etc/machine-id";
  if (!std::filesystem::exists(id) || std::filesystem::is_empty(id))
    GTEST_SKIP() << "the machine has no id";
  const Left left;
  left.rewrite_line(kBootLine, "an earlier one");
  left.rewrite_line(kProcessLine, "1");
  EXPECT_NE(RunDirectory(left.path()).note(), "");
}

TEST(RunDirectory, LeavesALockAloneThatIsNotItsOwn) {
  for (const int line :
       {kHostLine, kProcessLine, kStartedLine, kProcessSpaceLine, kBootLine, kMachineLine}) {
    const Left left;
    {
      const RunDirectory taken_over(left.path());
      left.rewrite_line(line, "another's");
    }
    EXPECT_TRUE(std::filesystem::exists(left.lock())) << line;
  }
}

TEST(RunDirectory, TakesOverTheLockThatItsOwnJobLeftOnAnotherHost) {
  setenv("SLURM_JOB_ID", "1234", 1);
  const Left left;
  left.rewrite_line(kHostLine, "elsewhere");
  EXPECT_THROW(RunDirectory(left.path()), StorageError)
      << "which another step of it may be holding";
  setenv("SLURM_RESTART_COUNT", "1", 1);
  EXPECT_NE(RunDirectory(left.path()).note(), "");
  unsetenv("SLURM_RESTART_COUNT");
  unsetenv("SLURM_JOB_ID");
}

/// Starts `count` processes that take the directory at once; returns how many got it.
int takers(const std::string& path, int count) {
  int starting[2], ending[2];
  EXPECT_EQ(pipe(starting) | pipe(ending), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    close(starting[1]);
    close(ending[1]);
    char byte;
    (void)!read(starting[0], &byte, 1);  // until the parent closes it
    int code = 0;
    try {
      const RunDirectory held(path);
      (void)!read(ending[0], &byte, 1);
    } catch (const StorageError& error) {
      code = contains(error.what(), "is in use by host ") ? 7 : 1;
    }
    _exit(code);
  }
  close(starting[1]);
  // All but one are refused; only then, or when that takes too long, is it let go.
  int got = 0, refused = 0;
  for (int status, polls = 0; got + refused < count; ++polls) {
    const bool is_late = polls > 30000;
    if (refused == count - 1 || is_late) close(std::exchange(ending[1], -1));
    if (waitpid(-1, &status, WNOHANG) <= 0) {
      usleep(1000);
      continue;
    }
    (WEXITSTATUS(status) == 0 ? got : refused) += 1;
    EXPECT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 7);
  }
  close(starting[0]);
  close(ending[0]);
  return got;
}

TEST(RunDirectory, IsTakenByOneOfManyThatStartAtOnce) {
  for (int round = 0; round < 3; ++round) {
    const TemporaryDirectory folder;
    EXPECT_EQ(takers(folder / "run", 20), 1);
  }
}

TEST(RunDirectory, IsTakenOverByOneOfManyThatStartAtOnce) {
  for (int round = 0; round < 3; ++round) {
    Left left;
    left.collect();
    EXPECT_EQ(takers(left.path(), 20), 1);
  }
}

TEST(RunDirectory, FollowsNoLinkThatIsLeftInIt) {
  const TemporaryDirectory folder;
  const std::string path = folder / "run", own = folder / "own";
  write_bytes(own, "kept");
  std::filesystem::create_directory(path);
  for (const std::string& name :
       {std::string("deck.used.toml"), "LOCK." + host_name() + "." + std::to_string(getpid())})
    std::filesystem::create_symlink(own, path + "/" + name);

  const RunDirectory held(path);

  EXPECT_TRUE(contains(error_of([&] { held.write_deck("[run]"); }), "it is a symbolic link"));
  EXPECT_EQ(read_bytes(own), "kept");
  std::filesystem::remove(path + "/LOCK");
  std::filesystem::create_symlink(own, path + "/LOCK");
  EXPECT_TRUE(contains(error_of([&] { RunDirectory second(path); }),
                       "is in use by a file that names no run"));
  EXPECT_EQ(read_bytes(own), "kept");
}

TEST(RunDirectory, NamesWhoKeepsAllStartsFromIt) {
  const TemporaryDirectory folder;
  const int file = open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(flock(file, LOCK_EX), 0);

  const std::string told = error_of([&] { RunDirectory run(folder.path()); });

  EXPECT_TRUE(contains(told, " is locked (flock) by process " + std::to_string(getpid()) + " ("));
  EXPECT_TRUE(contains(told, "chmod go-rx"));
  close(file);
  EXPECT_EQ(error_of([&] { RunDirectory run(folder.path()); }), "");
}

}  // namespace
}  // namespace zea::test_run_directory
