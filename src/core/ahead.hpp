// SPDX-License-Identifier: Apache-2.0
// Values that a thread makes one after the other, some ahead of the thread that takes them.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "core/error.hpp"

namespace zea {

template <class Value>
class Ahead {
 public:
  using Make = std::function<Value(int64_t number, const std::stop_token& stop)>;

  /// Starts to make the values [first, end), of which at most `most` wait to be taken. `make` is
  /// called once for each, in order, in the thread; what it returns once `stop` was requested is
  /// dropped.
  Ahead(Make make, int64_t first, int64_t end, int64_t most)
      : make_(std::move(make)),
        most_(static_cast<size_t>(std::max<int64_t>(most, 1))),
        thread_([this, first, end](const std::stop_token& stop) { run(first, end, stop); }) {}
  ~Ahead() {
    thread_.request_stop();  // wakes the thread when it waits for room
    thread_.join();
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  /// The next value; waits for it. Throws what `make` threw, when its value is reached and from
  /// then on.
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

  /// Waits for room; false when this is being destroyed.
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
  std::jthread thread_;       ///< last: it uses all of the above
};

}  // namespace zea
