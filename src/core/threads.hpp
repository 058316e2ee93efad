// SPDX-License-Identifier: Apache-2.0
// Loops over several threads, and values that a thread prepares ahead.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "core/error.hpp"

namespace zea {

/// Calls work(thread, item) once for each item in [0, items), items in order, by up to `threads`
/// threads, one of which is the caller. After an exception no further item begins, and the
/// exception of the lowest item is rethrown. Meant for work that waits for disks.
void parallel_for(int threads, size_t items,
                  const std::function<void(int thread, size_t item)>& work);

/// A producer thread that makes numbered values in order, ahead of the thread that takes them.
template <class Value>
class Prefetcher {
 public:
  using Make = std::function<Value(int64_t number, const std::stop_token& stop)>;

  /// Starts to make the values [first, end); at most `most` of them wait to be taken. The thread
  /// calls `make` once for each, in order, and drops a value that it returns after `stop` was
  /// requested.
  Prefetcher(Make make, int64_t first, int64_t end, int64_t most)
      : make_(std::move(make)),
        most_(static_cast<size_t>(std::max<int64_t>(most, 1))),
        thread_([this, first, end](const std::stop_token& stop) { run(first, end, stop); }) {}
  ~Prefetcher() {
    thread_.request_stop();  // wakes the thread when it waits for room
    thread_.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Waits for the next value and returns it. An exception of `make` is thrown when its value is
  /// reached and at each later call.
  Value next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ready_.empty() || finished_; });
    if (ready_.empty() && error_) std::rethrow_exception(error_);
    ZEA_ASSERT(!ready_.empty());  // next() was called more than end - first times
    Value value = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return value;
  }

 private:
  void run(int64_t first, int64_t end, const std::stop_token& stop) {
    std::exception_ptr error;
    try {
      for (int64_t number = first; number < end; ++number)
        if (!put(make_(number, stop), stop)) break;
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
    finished_ = true;
    changed_.notify_all();
  }

  /// Waits for room; returns false when this is being destroyed.
  bool put(Value value, const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    const bool room = changed_.wait(lock, stop, [this] { return ready_.size() < most_; });
    if (!room || stop.stop_requested()) return false;
    ready_.push_back(std::move(value));
    changed_.notify_all();
    return true;
  }

  const Make make_;
  const size_t most_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Value> ready_;   ///< guarded by mutex_
  std::exception_ptr error_;  ///< guarded by mutex_
  bool finished_ = false;     ///< guarded by mutex_
  std::jthread thread_;       ///< last, since it uses all members above
};

}  // namespace zea
