// SPDX-License-Identifier: Apache-2.0
#include "estimate/goodput.hpp"

#include <cmath>

namespace zea {

double best_interval(const FailureTimes& times) {
  const double mean = times.between_failures, save = times.save;
  if (save >= 2 * mean) return mean;
  const double ratio = std::sqrt(save / (2 * mean));
  return std::sqrt(2 * save * mean) * (1 + ratio / 3 + ratio * ratio / 9) - save;
}

double goodput(const FailureTimes& times, double interval) {
  const double mean = times.between_failures;
  const double expected =
      mean * std::exp(times.restart / mean) * std::expm1((interval + times.save) / mean);
  return expected > 0 ? interval / expected : 1;
}

}  // namespace zea
