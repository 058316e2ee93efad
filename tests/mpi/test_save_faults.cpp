// SPDX-License-Identifier: Apache-2.0
// A save that is killed at any of its file system calls, or that any of them fails, or that the
// power is cut from: the newest complete checkpoint is whole, is the one before or this one, and
// the next save works. Each try is a child process. The encoder is frozen: its file is linked, or
// written as by a run's first save. ZEA_FAULT_STRIDE: every so many calls are tried (1: all).
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "core/action_record.hpp"
#include "io/checkpoint.hpp"
#include "io/retention.hpp"
#include "io/shard_file.hpp"
#include "support/file_faults.hpp"
#include "support/files.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_save_faults {
namespace {

namespace fs = std::filesystem;
using testing::FaultKind;
using testing::FileFault;

constexpr int64_t kBefore = 7, kStep = 8;

int stride() {
  const char* text = std::getenv("ZEA_FAULT_STRIDE");
  return text ? std::max(1, std::atoi(text)) : 29;
}

/// The engine of a tiny model on one rank, with a checkpoint of kBefore.
class SaveFaults : public ::testing::Test {
 protected:
  SaveFaults()
      : plan_(make_tiny_plan()),
        mesh_(testing::world().communicator(), plan_.mesh, make_mpi_collectives, &record_),
        control_(make_mpi_collectives(testing::world().communicator())),
        engine_(plan_, mesh_, at::kCPU),
        writer_(engine_, *control_) {
    at::set_num_threads(1);  // children that fork() makes have no other thread
    fill(kBefore);
    save(kBefore);
    fill(kStep);
  }

  static Plan make_tiny_plan() {
    Options options;
    options.encoders["vision"].train = false;
    return make_plan(options, testing::tiny_llava_config({.layers = 1, .vision_layers = 2}), 1);
  }

  /// Calls visit(values of one parameter, whether training changes them) for every state of every
  /// parameter.
  template <class Visit>
  void for_each_value(Visit visit) {
    for (const auto& buffer : engine_.buffers()) {
      std::vector<at::Tensor> states{buffer->master()};
      if (buffer->trainable())
        states.insert(states.end(),
                      {engine_.state(*buffer, "exp_avg"), engine_.state(*buffer, "exp_avg_sq")});
      for (const at::Tensor& state : states)
        for (const FlatParam& member : buffer->layout().params)
          visit(state.narrow(0, member.offset, member.elements), buffer->trainable());
    }
  }

  /// State that tells which step it is of, where it is trained.
  void fill(int64_t step) {
    double number = 0;
    for_each_value([&](const at::Tensor& values, bool changes) {
      values.fill_((number += 0.125) + static_cast<double>(changes ? step : 0));
    });
  }

  bool is_filled(int64_t step) {
    double number = 0;
    bool is_right = true;
    for_each_value([&](const at::Tensor& values, bool changes) {
      const double value = (number += 0.125) + static_cast<double>(changes ? step : 0);
      is_right &= at::equal(values, at::full_like(values, value));
    });
    return is_right;
  }

  /// As a run saves: then all but the newest checkpoint are deleted.
  void save(int64_t step) {
    write(step);
    keep_newest(checkpoints_, 1);
  }

  void write(int64_t step) {
    if (!links_) {
      write_checkpoint(engine_, *control_, request(step));
      return;
    }
    writer_.start(request(step));
    writer_.finish();
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
    for_each_value([](const at::Tensor& values, bool) { values.fill_(-1); });
    read_checkpoint(engine_, *control_, source);
    EXPECT_TRUE(is_filled(step)) << what << ": step " << step;
    fill(kStep);
    return step;
  }

  /// The result of a child's save of kStep: its status, and its exception.
  struct Outcome {
    int status = 0;
    std::string message;
    bool was_killed() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
    bool went_well() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
    bool failed_as_storage() const {
      return WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::Storage);
    }
    /// Returns the calls of a successful save, in order.
    std::vector<std::string> calls() const {
      std::vector<std::string> lines;
      std::istringstream text(message);
      for (std::string line; std::getline(text, line);) lines.push_back(line);
      return lines;
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
        for (const std::string& call : testing::calls()) message += call + "\n";
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

  /// The calls of a save that nothing disturbs, and the number of the one that links; 0: none does.
  std::vector<std::string> calls_alone(int& link) {
    restore();
    const Outcome alone = save_in_child({.directory = temporary_.path()});
    EXPECT_TRUE(alone.went_well()) << alone.message;
    const std::vector<std::string> calls = alone.calls();
    link = 0;
    for (size_t i = 0; i < calls.size(); ++i)
      if (calls[i].starts_with("link ")) link = static_cast<int>(i) + 1;
    EXPECT_EQ(link > 0, links_);
    return calls;
  }

  int64_t moves() const { return read_moves(reinterpret_cast<const std::byte*>(memory_.data())); }

  /// As if the child had never been.
  void restore() {
    fs::remove_all(checkpoints_);
    fill(kBefore);
    save(kBefore);
    fill(kStep);
  }

  /// The next save works, whatever the failed one left.
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
  std::vector<int64_t> memory_ = std::vector<int64_t>(ActionRecord::memory_bytes() / 8 + 1);
  ActionRecord record_{reinterpret_cast<std::byte*>(memory_.data())};
  Mesh mesh_;
  std::unique_ptr<Collectives> control_;
  Engine engine_;
  CheckpointWriter writer_;  ///< of all saves, or each has its own
  bool links_ = true;
};

TEST_F(SaveFaults, KilledAtEveryCall) {
  for (const bool links : {true, false}) {
    links_ = links;
    int link = 0;
    const int calls = static_cast<int>(calls_alone(link).size());
    EXPECT_GT(calls, 50);
    bool was_before = false, was_after = false;
    for (int at = 1; at <= calls; ++at) {
      // The last calls, from the new name to the deletion of the old checkpoint, are few.
      const bool is_tried =
          at % stride() == 1 % stride() || at >= calls - 12 || at == link || at == link + 1;
      if (!is_tried) continue;
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
}

TEST_F(SaveFaults, FailedAtEveryCall) {
  // Each begins elsewhere, so that together they meet more of the calls.
  const std::vector<int> errors{ENOSPC, EIO, EDQUOT, EACCES};
  for (size_t i = 0; i < errors.size(); ++i) {
    const int error_number = errors[i], quarter = static_cast<int>(i) * stride() / 4;
    links_ = error_number == EIO || error_number == EACCES;
    int link = 0;
    const int calls = static_cast<int>(calls_alone(link).size());
    for (int at = 1 + quarter; at <= calls; at += stride()) {
      if (at == link) continue;
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

TEST_F(SaveFaults, WhereNothingCanBeLinkedItIsWritten) {
  int link = 0;
  const size_t calls = calls_alone(link).size();
  for (const int error_number : {EMLINK, EXDEV, EPERM, ENOSPC, EIO, EOPNOTSUPP, EDQUOT, EACCES}) {
    restore();
    const std::string what = "error " + std::to_string(error_number);
    const Outcome outcome = save_in_child({.directory = temporary_.path(),
                                           .kind = FaultKind::Error,
                                           .at = link,
                                           .error_number = error_number});
    EXPECT_TRUE(outcome.went_well()) << what << ": " << outcome.message;
    EXPECT_GT(outcome.calls().size(), calls) << what << ": its file was not written";
    EXPECT_EQ(check_newest(what), kStep);
  }
}

TEST_F(SaveFaults, APowerCutLosesNothingThatHasItsName) {
  for (const bool links : {false, true}) {
    links_ = links;
    restore();
    testing::arm({.directory = temporary_.path()});
    write(kStep);
    testing::disarm();
    for (const std::string& loss : testing::power_cut_losses()) ADD_FAILURE() << loss;
    EXPECT_EQ(fs::hard_link_count(checkpoints_ + "/step-00000008/frozen-00000.h5"), 1u + links);
  }

  // Only now may the one before go.
  testing::arm({.directory = temporary_.path()});
  keep_newest(checkpoints_, 1);
  testing::disarm();
  for (const std::string& loss : testing::power_cut_losses()) ADD_FAILURE() << loss;
}

TEST_F(SaveFaults, WhatCannotBeRemovedIsToldAndTheNextSaveIsMade) {
  links_ = true;
  int calls = 1, told = 0;
  for (int at = 0; at <= calls; ++at) {
    restore();
    write(kStep);
    testing::arm({temporary_.path(),
                  at == 0 ? testing::FaultKind::Count : testing::FaultKind::Error, at, EBUSY});
    const std::string error = error_of([&] {
      writer_.keep_newest(checkpoints_, 1);
      writer_.finish_removal();
    });
    testing::disarm();
    if (at == 0) calls = testing::num_calls();
    EXPECT_EQ(error, "") << "call " << at;
    const std::string fault = writer_.take_removal_fault();
    EXPECT_TRUE(fault.empty() || contains(fault, checkpoints_)) << fault;
    EXPECT_EQ(writer_.take_removal_fault(), "");
    told += fault.empty() ? 0 : 1;
    write(kStep + 1);
    EXPECT_EQ(list_checkpoints(checkpoints_).back().step, kStep + 1);
  }
  EXPECT_GE(told, 3) << "its name, its files, its directory";
}

// A watchdog must not take a file system for dead that takes long for each of many files.
TEST_F(SaveFaults, FilesThatGoOneByOneAreNoHang) {
  restore();
  write(kStep);
  constexpr int kFiles = 20;
  for (int rank = 100; rank < 100 + kFiles; ++rank)
    write_bytes(checkpoints_ + "/" + checkpoint_name(kBefore) + "/" + shard_file_name(rank), "x");

  testing::arm({.directory = temporary_.path(), .kind = FaultKind::Slow});
  writer_.keep_newest(checkpoints_, 1);
  const int64_t before = moves();
  writer_.finish_removal();
  testing::disarm();

  EXPECT_GE(moves() - before, kFiles / 2);
  EXPECT_FALSE(fs::exists(checkpoints_ + "/" + checkpoint_name(kBefore)));
  EXPECT_EQ(writer_.take_removal_fault(), "");
}

TEST_F(SaveFaults, AnElementThatNoRankWritesIsNoticed) {
  // As if ranks disagreed about the writer of a value.
  plan_.buffers.front().params.pop_back();

  const std::string error = error_of([&] { write_checkpoint(engine_, *control_, request(kStep)); });

  EXPECT_TRUE(contains(error, "exactly once")) << error;
  EXPECT_EQ(list_checkpoints(checkpoints_).back().step, kBefore);
}

}  // namespace
}  // namespace zea::test_save_faults
