// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <algorithm>
#include <thread>

namespace zea {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kShortSleep = std::chrono::microseconds(20);
constexpr auto kLongSleep = std::chrono::microseconds(100);

}  // namespace

void Progress::remove(Task* task) {
  const auto place = std::find(tasks_.begin(), tasks_.end(), task);
  if (place != tasks_.end()) tasks_.erase(place);
}

void Progress::poll() {
  const std::vector<Task*> now = tasks_;
  for (Task* task : now) task->advance();
}

void Progress::wait_until(const std::function<bool()>& done) {
  wait_until(done, std::chrono::hours(24 * 365));
}

bool Progress::wait_until(const std::function<bool()>& done, std::chrono::nanoseconds limit) {
  const Clock::time_point start = Clock::now();
  auto pause = kShortSleep;
  while (true) {
    poll();
    if (done()) return true;
    const auto waited = Clock::now() - start;
    if (waited > limit) return false;
    if (waited < kSpin) continue;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongSleep);
  }
}

}  // namespace zea
