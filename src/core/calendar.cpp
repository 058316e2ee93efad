// SPDX-License-Identifier: Apache-2.0
#include "core/calendar.hpp"

#include <chrono>

namespace zea {

double calendar_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace zea
