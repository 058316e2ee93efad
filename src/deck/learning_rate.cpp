// SPDX-License-Identifier: Apache-2.0
#include "deck/learning_rate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/text.hpp"

namespace zea {
namespace {

/// Returns the fraction of lr - min_lr that is left after `done` of `whole` steps after the
/// warm-up.
double left_of_rate(const OptimOptions& optim, double done, double whole) {
  switch (optim.decay) {
    case RateDecay::Cosine:
      return 0.5 * (1 + std::cos(std::numbers::pi * done / whole));
    case RateDecay::Linear:
      return 1 - done / whole;
    case RateDecay::Wsd:
      return std::min((whole - done) / static_cast<double>(optim.decay_steps), 1.0);
    case RateDecay::Constant:
    case RateDecay::InverseSqrt:
      break;
  }
  return 1;
}

double rate_of(const Options& options, int64_t step) {
  return learning_rate(options.optim, step, options.schedule.steps);
}

}  // namespace

double learning_rate(const OptimOptions& optim, int64_t step, int64_t steps) {
  const int64_t end = optim.schedule_end(steps), rise = optim.warmup_in(steps);
  const auto now = static_cast<double>(std::min(step, end)), warmup = static_cast<double>(rise);
  if (now <= warmup) return optim.lr * now / warmup;
  const double done = now - 1 - warmup;
  if (optim.decay == RateDecay::InverseSqrt) {
    const double scale = std::max(warmup, 1.0);
    return std::max(optim.min_lr, optim.lr * std::sqrt(scale / (done + scale)));
  }
  const double left = left_of_rate(optim, done, static_cast<double>(end) - warmup);
  return optim.min_lr + (optim.lr - optim.min_lr) * left;
}

std::string describe_new_schedule(const Options& now, const Options& then, int64_t step) {
  const int64_t end = now.optim.schedule_end(now.schedule.steps);
  const int64_t old_end = then.optim.schedule_end(then.schedule.steps);
  const bool has_fall = now.optim.decay != RateDecay::Constant &&
                        (now.optim.decay != RateDecay::InverseSqrt || now.optim.decay_until > 0);
  const int64_t next = step + 1;
  if (now.schedule.steps == then.schedule.steps || !has_fall || step == 0 ||
      next > now.schedule.steps)
    return "";
  const std::string kept = std::to_string(old_end);
  std::string text = formatted(
      "the run that is resumed had schedule.steps = %ld, now it has %ld: step %ld has the learning "
      "rate %.6g, after %.6g at step %ld",
      static_cast<long>(then.schedule.steps), static_cast<long>(now.schedule.steps),
      static_cast<long>(next), rate_of(now, next), rate_of(then, step), static_cast<long>(step));
  if (end == old_end)
    return text + ". optim.decay_until = " + kept +
           " keeps its schedule; later steps have the rate of step " + kept +
           formatted(", %.6g", rate_of(now, old_end));
  return text +
         formatted(
             "; the schedule (optim.decay = \"%s\") now ends at step %ld, not %ld. To keep it, "
             "set optim.decay_until=%ld: steps after that then have its last rate, %.6g, or a "
             "larger optim.min_lr. For a constant rate, set optim.decay=constant and optim.lr",
             now.optim.decay.name().c_str(), static_cast<long>(end), static_cast<long>(old_end),
             static_cast<long>(old_end), rate_of(then, old_end));
}

}  // namespace zea
