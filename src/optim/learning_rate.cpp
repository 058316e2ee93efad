// SPDX-License-Identifier: Apache-2.0
#include "zea/optim/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zea {
namespace {

/// How much of lr - min_lr is left at `done` of `whole` steps after the warm-up.
double left_of_rate(const OptimOptions& optim, double done, double whole) {
  switch (optim.decay) {
    case RateDecay::Cosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * std::min(1.0, done / whole)));
    case RateDecay::Linear:
      return 1 - std::min(1.0, done / whole);
    case RateDecay::Wsd:
      return std::clamp((whole - done) / static_cast<double>(optim.decay_steps), 0.0, 1.0);
    case RateDecay::Constant:
    case RateDecay::InverseSqrt:
      break;
  }
  return 1;
}

}  // namespace

double learning_rate(const OptimOptions& optim, int64_t step, int64_t steps) {
  const auto now = static_cast<double>(step), warmup = static_cast<double>(optim.warmup_steps);
  if (step <= optim.warmup_steps) return optim.lr * now / warmup;
  if (optim.decay == RateDecay::InverseSqrt)
    return std::max(optim.min_lr, optim.lr * std::sqrt(std::max(warmup, 1.0) / now));
  if (optim.decay == RateDecay::Constant || steps <= optim.warmup_steps) return optim.lr;
  const double left = left_of_rate(optim, now - warmup, static_cast<double>(steps) - warmup);
  return optim.min_lr + (optim.lr - optim.min_lr) * left;
}

}  // namespace zea
