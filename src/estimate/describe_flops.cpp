// SPDX-License-Identifier: Apache-2.0
#include "estimate/describe_flops.hpp"

#include "core/text.hpp"

namespace zea {
namespace {

constexpr double kUsualMfu = 0.4;

}  // namespace

std::string describe_flops(const Plan& plan, const StepSamples& samples, const StepFacts& facts) {
  const RunOptions& run = plan.options.run;
  if (run.mode != RunMode::Train) return "";
  const double teraflops = facts.model_flops / 1e12;
  std::string line = "model FLOPs of a step" +
                     std::string(samples.steps() > 1 ? " (mean of " : " (") +
                     samples.steps_text(plan) + "): " + formatted("%.4g TFLOP", teraflops);
  if (run.peak_tflops > 0) {
    line +=
        formatted(", on %d ranks of %.4g TFLOP/s (run.peak_tflops) %.4g s at an MFU of %.0f %%",
                  plan.world_size(), run.peak_tflops,
                  teraflops / (kUsualMfu * run.peak_tflops * plan.world_size()), 100 * kUsualMfu);
  }
  if (plan.world_size() > 1)
    line += formatted(
        "\n  the rank with most computes %.4g TFLOP of it, with units that are computed again; "
        "ranks would wait for %.1f %% of their time if messages took none",
        facts.slowest_flops / 1e12, 100 * facts.idle_share);
  return line + "\n";
}

}  // namespace zea
