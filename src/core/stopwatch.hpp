// SPDX-License-Identifier: Apache-2.0
// Seconds since it was made, by a clock that nobody sets.
#pragma once

#include <chrono>

namespace zea {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace zea
