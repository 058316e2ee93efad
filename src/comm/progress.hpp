// SPDX-License-Identifier: Apache-2.0
// The pending communications of one family of communicators. A communication may have several
// phases (exchange, sum, gather), and MPI progresses only messages that are already posted; so a
// rank that waits for one communication advances the others from phase to phase. Otherwise two
// ranks that wait in different orders would wait forever.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "comm/collectives.hpp"

namespace zea {

class Progress {
 public:
  class Task {
   public:
    virtual ~Task() = default;
    /// Advances as far as possible without waiting; returns whether anything happened. Does not
    /// throw; removes itself when finished.
    virtual bool advance() noexcept = 0;
  };

  void add(Task* task) { tasks_.push_back(task); }
  void remove(Task* task);
  /// Advances every task once; returns whether anything happened. Does nothing within a task's
  /// advance().
  bool poll();
  /// Polls until `done`. While nothing happens it first spins, then yields, then sleeps between
  /// polls: a thread inside MPI_Wait would occupy its neighbor's core.
  void wait_until(const std::function<bool()>& done);
  /// The same, but gives up after `limit`; returns whether it is done.
  bool wait_until(const std::function<bool()>& done, std::chrono::nanoseconds limit);

 private:
  std::vector<Task*> tasks_;
  bool is_polling_ = false;
};

/// A communication that is executed in advance(), whichever communication is waited for, until it
/// calls finish(); its failure is thrown to the one that waits for it.
class ProgressWork : public Pending::Work, protected Progress::Task {
 public:
  void wait() override;
  bool test() override;

 protected:
  explicit ProgressWork(std::shared_ptr<Progress> progress);
  /// For destructors, as long as advance() can be called: waits, unless an exception unwinds.
  void leave();
  void finish(std::exception_ptr failure = nullptr);

  std::shared_ptr<Progress> progress_;
  std::exception_ptr failure_;
  bool done_ = false;
};

}  // namespace zea
