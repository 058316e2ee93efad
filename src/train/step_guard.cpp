// SPDX-License-Identifier: Apache-2.0
#include "train/step_guard.hpp"

#include <algorithm>
#include <cmath>

#include "core/text.hpp"

namespace zea {
namespace {

/// Sums in two passes, as losses lie close to each other.
std::string describe_spike(const char* what, const std::vector<double>& window, double deviations,
                           double value) {
  double mean = 0, variance = 0;
  const auto count = static_cast<double>(window.size());
  for (const double one : window) mean += one / count;
  for (const double one : window) variance += (one - mean) * (one - mean) / count;
  if (value <= mean + deviations * std::sqrt(variance)) return "";
  return formatted("%s is %.6g, above %.6g (mean) + %g x %.3g (deviation) of %zu accepted steps",
                   what, value, mean, deviations, std::sqrt(variance), window.size());
}

void push(std::vector<double>& window, double value, size_t most) {
  window.push_back(value);
  if (window.size() > most)
    window.erase(window.begin(), window.end() - static_cast<std::ptrdiff_t>(most));
}

}  // namespace

std::string find_spike(const OptimOptions& optim, const StepHistory& history, double loss,
                       double grad_norm) {
  if (optim.spike_deviations == 0 ||
      static_cast<int64_t>(history.losses.size()) < optim.spike_window)
    return "";
  const std::string of_loss = describe_spike("loss", history.losses, optim.spike_deviations, loss);
  return of_loss.empty() ? describe_spike("the gradient's norm", history.grad_norms,
                                          optim.spike_deviations, grad_norm)
                         : of_loss;
}

bool is_checked_on_device(const Plan& plan, bool has_kernels) {
  const bool offloads = std::ranges::any_of(plan.shardings, &Sharding::offloads);
  return has_kernels && plan.optimizer.reads_factor && !offloads &&
         plan.options.optim.spike_deviations == 0 && !plan.updates_states();
}

bool needs_report_now(const Options& options, int64_t step) {
  const auto is_due = [&](int64_t every) { return every > 0 && step % every == 0; };
  return is_due(options.checkpoint.every.count()) || is_due(options.eval.every) ||
         step == options.schedule.steps;
}

void accept(const OptimOptions& optim, double loss, double grad_norm, StepHistory& history) {
  history.skipped_in_a_row = 0;
  const auto most = static_cast<size_t>(optim.spike_deviations > 0 ? optim.spike_window : 0);
  push(history.losses, loss, most);
  push(history.grad_norms, grad_norm, most);
}

}  // namespace zea
