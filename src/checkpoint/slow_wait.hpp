// SPDX-License-Identifier: Apache-2.0
// Waiting for what another thread does with a file system that may take long.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>

#include "core/action_record.hpp"

namespace zea::detail {

/// Until `is_done`. As long as `count`, of what was done, changes it is slow, not stuck.
inline void wait_while_slow(ActionRecord& record, const std::function<bool()>& is_done,
                            const std::function<int64_t()>& count) {
  for (int64_t last = 0; !is_done();) {
    const int64_t now = count();
    if (std::exchange(last, now) != now) record.moved();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace zea::detail
