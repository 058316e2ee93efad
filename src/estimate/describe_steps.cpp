// SPDX-License-Identifier: Apache-2.0
#include "estimate/describe_steps.hpp"

#include <cmath>

#include "core/text.hpp"
#include "estimate/describe_flops.hpp"
#include "estimate/describe_gathering.hpp"
#include "estimate/describe_reductions.hpp"
#include "estimate/mebibytes.hpp"

namespace zea {
namespace {

/// A mean: whole where all steps have as many.
std::string count_text(double count) {
  const bool is_whole = count == std::round(count);
  return formatted(is_whole ? "%.0f" : "%.1f", count);
}

std::string step_name(const Plan& plan) {
  return plan.options.run.mode == RunMode::Train ? "step" : "batch";
}

std::string counts_line(const Plan& plan, const StepFacts& facts) {
  const int replicas = plan.mesh.replicas();
  std::string line = "  a " + step_name(plan) + (facts.steps > 1 ? " has on average " : " has ") +
                     count_text(facts.samples) + " samples, " + count_text(facts.tokens) +
                     " tokens, " + count_text(facts.targets) + " targets";
  if (!plan.model.encoders.empty()) line += ", " + count_text(facts.items) + " items";
  return line + "; " + count_text(facts.microbatches) + " microbatches on " +
         (replicas == 1 ? "the one replica" : "each of " + std::to_string(replicas) + " replicas") +
         formatted(", rows filled to %.0f %%\n", 100 * facts.fill);
}

/// Encoders that have nothing to do in these steps.
std::string idle_encoders(const Plan& plan, const StepSamples& samples) {
  std::string text;
  for (const EncoderSpec& encoder : plan.model.encoders) {
    const int number = plan.model.encoder_index(encoder.name);
    bool has_items = false;
    for (const SampleIndex& sample : samples.index) has_items |= sample.items.of(number) > 0;
    if (!has_items)
      text += "  note: none of these samples has an item of " + encoder.name +
              ", so its ranks have nothing to encode\n";
  }
  return text;
}

std::string traffic_lines(const Plan& plan, const StepSamples& samples, const StepFacts& facts) {
  if (plan.world_size() == 1) return "";
  const RankTraffic& first = facts.traffic.front();
  const RankTraffic& most = facts.most_sent();
  const auto mean = [&](const RankTraffic& of) {
    return detail::mebibytes(of.total() / facts.steps);
  };
  std::string text = "bytes that rank 0 sends in a " + step_name(plan) + " of " +
                     (samples.is_real ? "the data (" : "made-up samples (") +
                     (samples.steps() > 1 ? "mean of " : "") + samples.steps_text(plan) +
                     "), by group of ranks\n  " + describe(first.sent, facts.steps) +
                     "\n  together " + mean(first);
  if (most.total() > first.total())
    text += "; rank " + std::to_string(most.rank) + " (" +
            plan.pipeline.stage_groups[plan.group_of(most.rank)].name + ") sends most, " +
            mean(most) + ": " + describe(most.sent, facts.steps);
  return text + "\n";
}

}  // namespace

std::string describe_steps(const Plan& plan, const StepSamples& samples, const StepFacts& facts) {
  std::string text = samples.steps_text(plan) + (samples.is_real ? " of " : ": ") + samples.source +
                     "\n" + counts_line(plan, facts) + idle_encoders(plan, samples);
  text += describe_gathering(plan, samples) + describe_reductions(plan, samples, facts);
  text += "bytes in " + step_name(plan) + " " + std::to_string(facts.memory_step + 1) +
          " on the rank that needs most: " + describe(facts.memory) + "\n";
  return text + describe_flops(plan, samples, facts) + traffic_lines(plan, samples, facts);
}

}  // namespace zea
