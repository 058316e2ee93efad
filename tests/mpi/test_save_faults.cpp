// SPDX-License-Identifier: Apache-2.0
// A save that is killed at any of its file system calls, or that any of them fails, or that the
// power is cut from: the newest complete checkpoint is whole, is the one before or this one, and
// the next save works. Each try is a child process. ZEA_FAULT_STRIDE: every so many calls are
// tried (1: all).
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include <sys/wait.h>
#include <unistd.h>

#include "support/file_faults.hpp"
#include "support/files.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_llava.hpp"
#include "zea/checkpoint/checkpoint_reader.hpp"
#include "zea/checkpoint/checkpoint_writer.hpp"
#include "zea/checkpoint/load_weights.hpp"
#include "zea/checkpoint/retention.hpp"
#include "zea/io/checkpoint_source.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;
using testing::FaultKind;
using testing::FileFault;

constexpr int64_t kBefore = 7, kStep = 8;

int stride() {
  const char* text = std::getenv("ZEA_FAULT_STRIDE");
  return text ? std::max(1, std::atoi(text)) : 19;
}

/// The engine of a tiny model on one rank, with a checkpoint of kBefore.
class SaveFaults : public ::testing::Test {
 protected:
  SaveFaults()
      : plan_(make_tiny_plan()),
        mesh_(testing::world().communicator(), plan_.mesh, make_mpi_collectives),
        control_(make_mpi_collectives(testing::world().communicator())),
        engine_(plan_, mesh_, at::kCPU) {
    at::set_num_threads(1);  // children that fork() makes have no other thread
    fill(kBefore);
    save(kBefore);
    fill(kStep);
  }

  static Plan make_tiny_plan() {
    return make_plan(Options(), testing::tiny_llava_config({.layers = 1, .vision_layers = 2}), 1);
  }

  /// Calls visit(values of one parameter) for every state of every parameter.
  template <class Visit>
  void for_each_value(Visit visit) {
    for (const auto& group : engine_.groups()) {
      std::vector<at::Tensor> states{group->master()};
      if (group->trainable()) states.insert(states.end(), {group->exp_avg(), group->exp_avg_sq()});
      for (const at::Tensor& state : states)
        for (const FlatParam& member : group->layout().params)
          visit(state.narrow(0, member.offset, member.elements));
    }
  }

  /// State that tells which step it is of.
  void fill(int64_t step) {
    double value = static_cast<double>(step);
    for_each_value([&](const at::Tensor& values) { values.fill_(value += 0.125); });
  }

  bool is_filled(int64_t step) {
    double value = static_cast<double>(step);
    bool is_right = true;
    for_each_value([&](const at::Tensor& values) {
      is_right &= at::equal(values, at::full_like(values, value += 0.125));
    });
    return is_right;
  }

  /// As a run saves: then all but the newest checkpoint are deleted.
  void save(int64_t step) {
    write_checkpoint(engine_, *control_, request(step));
    keep_newest(checkpoints_, 1);
  }

  CheckpointRequest request(int64_t step) const {
    return {.directory = checkpoints_,
            .run_id = "run-1",
            .position = {.step = step, .optimizer_step = step},
            .deck = "[run]\n"};
  }

  /// Bitwise, all of the newest complete checkpoint; returns its step.
  int64_t check_newest(const std::string& what) {
    const ResolvedCheckpoint newest = resolve_checkpoint(checkpoints_);
    EXPECT_EQ(newest.note, "") << what;
    const CheckpointSource source(newest.path);
    source.check_all();
    const int64_t step = source.position().step;
    EXPECT_TRUE(step == kBefore || step == kStep) << what;
    fill(0);
    read_checkpoint(engine_, *control_, source);
    EXPECT_TRUE(is_filled(step)) << what << ": step " << step;
    fill(kStep);
    return step;
  }

  /// What a child says of its save of kStep: its status, and what it threw.
  struct Outcome {
    int status = 0;
    std::string message;
    bool was_killed() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
    bool went_well() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
    bool failed_as_storage() const {
      return WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::Storage);
    }
  };

  Outcome save_in_child(const FileFault& fault) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 0;
      std::string message;
      try {
        testing::arm(fault);
        save(kStep);
        message = std::to_string(testing::num_calls());
      } catch (const Error& error) {
        code = static_cast<int>(error.code());
        message = error.what();
      } catch (...) {
        code = static_cast<int>(ExitCode::Internal);
      }
      const ssize_t ignored = ::write(ends[1], message.data(), message.size());
      ::_exit(ignored < 0 ? 99 : code);
    }
    ::close(ends[1]);
    Outcome outcome;
    char buffer[1024];
    for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;)
      outcome.message.append(buffer, static_cast<size_t>(got));
    ::close(ends[0]);
    ::waitpid(child, &outcome.status, 0);
    return outcome;
  }

  /// As if the child had never been.
  void restore() {
    fs::remove_all(checkpoints_);
    fill(kBefore);
    save(kBefore);
    fill(kStep);
  }

  /// The next save works, whatever was left behind.
  void check_next_save(const std::string& what) {
    remove_unfinished(checkpoints_);
    save(kStep);
    EXPECT_EQ(check_newest(what), kStep) << what;
    for (const auto& entry : fs::directory_iterator(checkpoints_))
      EXPECT_EQ(entry.path().filename(), "step-00000008") << what;
  }

  TemporaryDirectory temporary_;
  std::string checkpoints_ = temporary_ / "checkpoints";
  Plan plan_;
  Mesh mesh_;
  std::unique_ptr<Collectives> control_;
  Engine engine_;
};

TEST_F(SaveFaults, KilledAtEveryCall) {
  const Outcome alone = save_in_child({.directory = temporary_.path()});
  ASSERT_TRUE(alone.went_well()) << alone.message;
  const int calls = std::stoi(alone.message);
  EXPECT_GT(calls, 50);
  bool was_before = false, was_after = false;
  // The last calls, from the new name to the deletion of the old checkpoint, are few.
  for (int at = 1; at <= calls; at += at < calls - 12 ? stride() : 1) {
    restore();
    const std::string what = "killed at call " + std::to_string(at);
    const Outcome outcome =
        save_in_child({.directory = temporary_.path(), .kind = FaultKind::Kill, .at = at});
    ASSERT_TRUE(outcome.was_killed()) << what << ": " << outcome.message;
    (check_newest(what) == kBefore ? was_before : was_after) = true;
    check_next_save(what);
  }
  EXPECT_TRUE(was_before && was_after);
}

TEST_F(SaveFaults, FailedAtEveryCall) {
  const Outcome alone = save_in_child({.directory = temporary_.path()});
  const int calls = std::stoi(alone.message);
  for (const int error_number : {ENOSPC, EIO}) {
    const int first = error_number == EIO ? 1 + stride() / 2 : 1;
    for (int at = first; at <= calls; at += stride()) {
      restore();
      const std::string what =
          "error " + std::to_string(error_number) + " at call " + std::to_string(at);
      const Outcome outcome = save_in_child({.directory = temporary_.path(),
                                             .kind = FaultKind::Error,
                                             .at = at,
                                             .error_number = error_number});
      EXPECT_TRUE(outcome.failed_as_storage()) << what << ": " << outcome.message;
      EXPECT_TRUE(contains(outcome.message, temporary_.path())) << what << ": " << outcome.message;
      check_newest(what);
      check_next_save(what);
    }
  }
}

TEST_F(SaveFaults, APowerCutLosesNothingThatHasItsName) {
  testing::arm({.directory = temporary_.path()});
  write_checkpoint(engine_, *control_, request(kStep));
  testing::disarm();
  for (const std::string& loss : testing::power_cut_losses()) ADD_FAILURE() << loss;

  // Only now may the one before go.
  testing::arm({.directory = temporary_.path()});
  keep_newest(checkpoints_, 1);
  testing::disarm();
  for (const std::string& loss : testing::power_cut_losses()) ADD_FAILURE() << loss;
}

TEST_F(SaveFaults, AnElementThatNoRankWritesIsNoticed) {
  // As if ranks disagreed about who writes what.
  plan_.groups.front().params.pop_back();

  const std::string error = error_of([&] { save(kStep); });

  EXPECT_TRUE(contains(error, "exactly once")) << error;
  EXPECT_EQ(list_checkpoints(checkpoints_).back().step, kBefore);
}

}  // namespace
}  // namespace zea
