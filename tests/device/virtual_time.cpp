// SPDX-License-Identifier: Apache-2.0
#include "device/virtual_time.hpp"

#include <algorithm>

namespace zea::testing {

double LaunchOrder::begin(int64_t turn, double free) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return next_ == turn; });
  ++next_;
  last_begin_ = std::max(last_begin_, free);
  changed_.notify_all();
  return last_begin_;
}

void LaunchOrder::restart_time() {
  const std::lock_guard lock(mutex_);
  last_begin_ = 0;
}

}  // namespace zea::testing
