// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/describe/describe_flops.hpp"

#include "zea/core/formatted.hpp"
#include "zea/plan/estimate/memory_estimate.hpp"

namespace zea {
namespace {

constexpr double kUsualMfu = 0.4;

}  // namespace

std::string describe_flops(const Plan& plan) {
  const RunOptions& run = plan.options.run;
  if (run.mode != RunMode::Train) return "";
  const int64_t rows =
      predicted_microbatches(plan) * plan.options.data.rows_per_microbatch * plan.mesh.replicas();
  const double teraflops =
      static_cast<double>(rows) * sample_cost(full_row(plan), plan.flops_of_samples) / 1e12;
  std::string line =
      formatted("model FLOPs of a step of %ld full rows, a sample in each: %.4g TFLOP",
                static_cast<long>(rows), teraflops);
  if (run.peak_tflops > 0) {
    line +=
        formatted(", on %d ranks of %.4g TFLOP/s (run.peak_tflops) %.4g s at an MFU of %.0f %%",
                  plan.world_size(), run.peak_tflops,
                  teraflops / (kUsualMfu * run.peak_tflops * plan.world_size()), 100 * kUsualMfu);
  }
  return line + "\n";
}

}  // namespace zea
