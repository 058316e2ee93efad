// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/describe/describe_reductions.hpp"

#include <algorithm>

#include "mebibytes.hpp"
#include "zea/plan/estimate/memory_estimate.hpp"
#include "zea/plan/estimate/traffic.hpp"

namespace zea {
namespace {

/// In a step of full rows, by the rank that sends most.
int64_t most_sent(const Plan& plan) {
  const auto microbatches = static_cast<size_t>(predicted_microbatches(plan));
  int64_t most = 0;
  for (const PipelinePlace& place : plan.pipeline.places) {
    int64_t sent = 0;
    for (const auto& [group, bytes] : traffic_of_full_step(plan, place.first_rank, microbatches))
      sent += bytes;
    most = std::max(most, sent);
  }
  return most;
}

}  // namespace

std::string describe_reductions(const Plan& plan) {
  if (plan.options.run.mode != RunMode::Train) return "";
  std::string text;
  for (const std::string& module : plan.model.modules()) {
    const Precision& precision = plan.precision_of(module);
    if (precision.reduce == precision.master) continue;
    Plan exact = plan;
    exact.precisions[module].reduce = precision.master;
    const int64_t spared = most_sent(exact) - most_sent(plan);
    if (spared == 0) continue;
    text += "  " + module + ": in bf16 (precision." + module + ".reduce_dtype), " +
            detail::mebibytes(spared) +
            " less sent a step than in fp32; every gradient, and every sum on its way, is rounded "
            "to 8 bits, by up to 0.4 %\n";
  }
  return text.empty() ? text : "gradients summed between ranks\n" + text;
}

}  // namespace zea
