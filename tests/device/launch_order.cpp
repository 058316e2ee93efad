// SPDX-License-Identifier: Apache-2.0
#include "device/launch_order.hpp"

#include <algorithm>
#include <cmath>

namespace zea::testing {

double LaunchOrder::begin(int64_t turn, double free, int blocks) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return next_ == turn; });
  double time = std::max(last_begin_, free);
  while (!running_.empty() && held_at(time) + blocks > blocks_) {
    if (running_.empty()) break;  // more than the device has: it runs alone
    double earliest = std::numeric_limits<double>::infinity();
    for (const auto& [other, kernel] : running_) earliest = std::min(earliest, kernel.end);
    if (std::isinf(earliest))
      changed_.wait(lock);
    else
      time = std::max(time, earliest);
  }
  running_[turn] = {blocks};
  ++next_;
  last_begin_ = time;
  changed_.notify_all();
  return time;
}

int LaunchOrder::held_at(double time) {
  std::erase_if(running_, [&](const auto& one) { return one.second.end <= time; });
  int held = 0;
  for (const auto& [turn, kernel] : running_) held += kernel.blocks;
  return held;
}

void LaunchOrder::end(int64_t turn, double time) {
  const std::lock_guard lock(mutex_);
  running_.at(turn).end = time;
  changed_.notify_all();
}

void LaunchOrder::restart_time() {
  const std::lock_guard lock(mutex_);
  last_begin_ = 0;
  running_.clear();
}

}  // namespace zea::testing
