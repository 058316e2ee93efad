// SPDX-License-Identifier: Apache-2.0
#include "core/threads.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace zea {
namespace {

/// The state that the threads share.
class Loop {
 public:
  Loop(size_t items, const std::function<void(int, size_t)>& work) : items_(items), work_(work) {}

  void run(int thread) noexcept {
    for (size_t item = next_++; item < items_; item = next_++) {
      try {
        work_(thread, item);
      } catch (...) {
        fail(item);
      }
    }
  }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void fail(size_t item) {
    next_ = items_;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_ && failed_item_ < item) return;
    failure_ = std::current_exception();
    failed_item_ = item;
  }

  const size_t items_;
  const std::function<void(int, size_t)>& work_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;  ///< guards the members below
  std::exception_ptr failure_;
  size_t failed_item_ = 0;
};

}  // namespace

void parallel_for(int threads, size_t items, const std::function<void(int, size_t)>& work) {
  Loop loop(items, work);
  {
    std::vector<std::jthread> others;
    const int most = static_cast<int>(std::min(static_cast<size_t>(threads), items));
    try {
      for (int thread = 1; thread < most; ++thread)
        others.emplace_back([&loop, thread] { loop.run(thread); });
    } catch (const std::system_error&) {  // no more threads available: the started ones do the work
    }
    loop.run(0);
  }  // joins
  loop.rethrow();
}

}  // namespace zea
