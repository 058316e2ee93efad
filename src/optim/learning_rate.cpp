// SPDX-License-Identifier: Apache-2.0
#include "zea/optim/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zea {

double learning_rate(const OptimOptions& optim, int64_t step, int64_t steps) {
  if (step <= optim.warmup_steps)
    return optim.lr * static_cast<double>(step) / static_cast<double>(optim.warmup_steps);
  if (optim.decay == RateDecay::Constant || steps <= optim.warmup_steps) return optim.lr;
  const double done = static_cast<double>(step - optim.warmup_steps);
  const double progress = std::min(1.0, done / static_cast<double>(steps - optim.warmup_steps));
  const double left = optim.decay == RateDecay::Linear
                          ? 1 - progress
                          : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return optim.min_lr + (optim.lr - optim.min_lr) * left;
}

}  // namespace zea
