// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "estimate/describe.hpp"

namespace zea {
namespace {

double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

/// "1.25 s", "812 ms", "1.6 ms".
std::string seconds_text(double seconds) {
  return seconds >= 1 ? formatted("%.3g s", seconds) : formatted("%.3g ms", 1e3 * seconds);
}

std::string waits_text(const WaitSeconds& waits, double seconds) {
  std::string text;
  for (int i = 0; i < kWaits; ++i)
    if (const double share = percent(waits[static_cast<size_t>(i)], seconds); share >= 0.05)
      text += formatted("%s%s %.1f %%", text.empty() ? "" : ", ", wait_name(static_cast<Wait>(i)),
                        share);
  return text.empty() ? "nothing" : text;
}

std::string stage_table(const StepTime& time) {
  size_t name = std::string_view("stage group").size();
  for (const StageTime& stage : time.stages) name = std::max(name, stage.name.size());
  const int width = static_cast<int>(name);
  std::string text = formatted("  %-*s  %6s  %9s  %10s  %9s  %6s\n", width, "stage group", "rank",
                               "kernels", "exposed", "optimizer", "idle");
  for (const StageTime& stage : time.stages)
    text += formatted("  %-*s  %6d  %7.1f %%  %8.1f %%  %7.1f %%  %4.1f %%\n", width,
                      stage.name.c_str(), stage.first_rank, percent(stage.compute, time.seconds),
                      percent(stage.exposed_sum(), time.seconds),
                      percent(stage.optimizer, time.seconds),
                      percent(std::max(0.0, time.seconds - stage.busy()), time.seconds));
  return text;
}

/// Why the busiest stage group is busier than the mean of all: the part with the largest excess.
std::string excess(const StepTime& time, const StageTime& slowest) {
  double compute = 0, exposed = 0, ranks = 0;
  for (const StageTime& stage : time.stages) {
    compute += stage.compute * stage.ranks;
    exposed += stage.exposed_sum() * stage.ranks;
    ranks += stage.ranks;
  }
  compute /= ranks;
  exposed /= ranks;
  if (slowest.exposed_sum() - exposed > slowest.compute - compute)
    return "it waits longest for communication (" + waits_text(slowest.exposed, time.seconds) +
           " of the step)";
  return formatted("its kernels take %.2f times the mean of all stage groups",
                   compute > 0 ? slowest.compute / compute : 1);
}

/// The part of a step of one stage group that takes longest after kernels.
std::string remainder(const StepTime& time, const StageTime& stage) {
  std::vector<std::pair<double, std::string>> parts{
      {stage.recomputed, "recomputation"},
      {stage.optimizer, "the optimizer"},
      {time.seconds * (1 - time.balance), "samples that make replicas unlike"}};
  for (int i = 0; i < kWaits; ++i)
    parts.emplace_back(stage.exposed[static_cast<size_t>(i)],
                       std::string("communication of ") + wait_name(static_cast<Wait>(i)));
  const auto most = std::ranges::max_element(parts);
  return formatted("%.1f %% of the step are its kernels; most of what could be saved is ",
                   percent(stage.compute - stage.recomputed, time.seconds)) +
         most->second + formatted(" (%.1f %%)", percent(most->first, time.seconds));
}

}  // namespace

std::string describe_time(const Plan& plan, const StepSamples& samples, const StepTime& time,
                          const Hardware& hardware) {
  const StageTime& slowest = time.slowest();
  std::string text = "time of a step (mean of " + samples.steps_text(plan) + ") on " +
                     hardware.identity.name + ", by " + hardware.identity.source.name() +
                     " figures: " + seconds_text(time.seconds) +
                     formatted(", %.4g tokens/s, %.4g a rank", time.tokens_per_second,
                               time.tokens_per_second / plan.world_size());
  if (time.mfu > 0)
    text += formatted(", MFU %.1f %% (%.1f %% unmasked)", 100 * time.mfu, 100 * time.mfu_unmasked);
  text += "\n  communication that nothing hides: " + waits_text(time.exposed(), time.seconds) +
          formatted(" of the step; stages wait for others %.1f %%", 100 * time.idle_share());
  double recomputed = 0;
  for (const StageTime& stage : time.stages) recomputed = std::max(recomputed, stage.recomputed);
  if (recomputed > 0)
    text += formatted("; recomputation takes %.1f %%", percent(recomputed, time.seconds));
  text += "\n";
  if (time.stages.size() > 1) text += stage_table(time);
  text += "  slowest: rank " + std::to_string(slowest.first_rank) + " (" + slowest.name +
          "): " + (time.stages.size() > 1 ? excess(time, slowest) : remainder(time, slowest));
  if (time.balance < 0.995)
    text += formatted("; its replica has %.2f times the mean FLOPs of all", 1 / time.balance);
  text += "\n";
  for (const std::string& note : time.notes) text += "  note: " + note + "\n";
  return text;
}

}  // namespace zea
