// SPDX-License-Identifier: Apache-2.0
#include "estimate/describe_reductions.hpp"

#include <algorithm>

#include "estimate/mebibytes.hpp"
#include "estimate/traffic.hpp"

namespace zea {
namespace {

/// The first rank that has a part of the module and sends most.
const RankTraffic& most_sent(const Plan& plan, const StepFacts& facts, const std::string& module) {
  const auto sent = [&](const RankTraffic& rank) {
    return plan.mesh.has(rank.rank, module) ? rank.total() : -1;
  };
  return *std::ranges::max_element(facts.traffic, {}, sent);
}

}  // namespace

std::string describe_reductions(const Plan& plan, const StepSamples& samples,
                                const StepFacts& facts) {
  if (plan.options.run.mode != RunMode::Train) return "";
  std::string text;
  for (const std::string& module : plan.model.modules()) {
    const Precision& precision = plan.precision_of(module);
    if (precision.reduce == precision.master) continue;
    Plan exact = plan;
    exact.precisions[module].reduce = precision.master;
    const RankTraffic& now = most_sent(plan, facts, module);
    const RankTraffic otherwise{now.rank, traffic_of_samples(exact, samples, now.rank)};
    const int64_t spared = (otherwise.total() - now.total()) / samples.steps();
    if (spared == 0) continue;
    const auto per_step = [&](const RankTraffic& rank) {
      return detail::mebibytes(rank.total() / samples.steps());
    };
    text += "  " + module + ": in bf16 (precision." + module + ".reduce_dtype): rank " +
            std::to_string(now.rank) + " sends " + per_step(now) + " a step in place of " +
            per_step(otherwise) + ", " + detail::mebibytes(spared) +
            " less than in fp32; every gradient, and every sum on its way, is rounded to 8 bits, "
            "by up to 0.4 %\n";
  }
  return text.empty() ? text : "gradients summed between ranks\n" + text;
}

}  // namespace zea
