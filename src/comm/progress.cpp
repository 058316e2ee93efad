// SPDX-License-Identifier: Apache-2.0
#include "comm/progress.hpp"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace zea {
namespace {

using Clock = std::chrono::steady_clock;
/// A peer that is at the same place answers within this; then its core may be this one.
constexpr auto kSpin = std::chrono::microseconds(2);
constexpr auto kYield = std::chrono::microseconds(50);
constexpr auto kShortSleep = std::chrono::microseconds(20);
constexpr auto kLongSleep = std::chrono::microseconds(100);

/// MPI may still hold messages that are complete for us, and moves them only inside its calls.
void let_mpi_progress() {
  int found = 0;
  MPI_Iprobe(0, 0, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
}

}  // namespace

void Progress::remove(Task* task) {
  const auto place = std::find(tasks_.begin(), tasks_.end(), task);
  if (place == tasks_.end()) return;
  if (is_polling_)
    *place = nullptr;  // poll() counts on the places of the others
  else
    tasks_.erase(place);
}

bool Progress::poll() {
  if (is_polling_) return false;
  is_polling_ = true;
  bool moved = false;
  for (size_t i = 0; i < tasks_.size(); ++i)  // a task may add others
    if (tasks_[i] != nullptr && tasks_[i]->advance()) moved = true;
  std::erase(tasks_, nullptr);
  is_polling_ = false;
  return moved;
}

void Progress::wait_until(const std::function<bool()>& done) {
  wait_until(done, std::chrono::hours(24 * 365));
}

bool Progress::wait_until(const std::function<bool()>& done, std::chrono::nanoseconds limit) {
  const Clock::time_point start = Clock::now();
  Clock::time_point last_move = start;
  auto pause = kShortSleep;
  while (true) {
    const bool moved = poll();
    if (done()) return true;
    const Clock::time_point now = Clock::now();
    if (now - start > limit) return false;
    if (moved) {
      last_move = now;
      pause = kShortSleep;
    }
    const auto still = now - last_move;
    if (still < kSpin) continue;
    if (still < kYield) {
      sched_yield();
      continue;
    }
    let_mpi_progress();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongSleep);
  }
}

ProgressWork::ProgressWork(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {
  progress_->add(this);
}

void ProgressWork::wait() {
  if (!done_) progress_->wait_until([this] { return done_; });
  if (failure_) std::rethrow_exception(failure_);
}

bool ProgressWork::test() {
  if (!done_) progress_->poll();
  if (failure_) std::rethrow_exception(failure_);
  return done_;
}

void ProgressWork::leave() {
  if (!done_ && std::uncaught_exceptions() == 0) progress_->wait_until([this] { return done_; });
  progress_->remove(this);
}

void ProgressWork::finish(std::exception_ptr failure) {
  failure_ = std::move(failure);
  done_ = true;
  progress_->remove(this);
}

}  // namespace zea
