// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "estimate/describe.hpp"
#include "estimate/traffic.hpp"
#include "layout/module_sharding.hpp"
#include "layout/reduction.hpp"

namespace zea {
namespace {

using detail::mebibytes;

/// The module's first buffer that is gathered; null: none is.
const Sharding* gathered_sharding(const Plan& plan, const std::string& module) {
  for (size_t g = 0; g < plan.buffers.size(); ++g)
    if (plan.buffers[g].module == module && plan.shardings[g].gathered() &&
        plan.shardings[g].shards > 1)
      return &plan.shardings[g];
  return nullptr;
}

/// On the ranks of the module's stage group that has most, and the bytes that its ranks send to
/// each other for it.
std::string cost_of(const Plan& plan, const std::string& module, const StepSamples& samples) {
  const std::string group = group_name(module, gathered_sharding(plan, module)->sharded_over);
  int64_t held = 0, sent = 0;
  for (size_t p = 0; p < plan.slots.size(); ++p) {
    const int rank = plan.pipeline.stage_groups[p].first_rank;
    if (!plan.mesh.has(rank, module)) continue;
    const SlotPlans& slots = plan.slots[p];
    held = std::max(held, slots.gathered.total_bytes() + slots.gradients.total_bytes() +
                              slots.wire.total_bytes());
    const Traffic traffic = traffic_of_samples(plan, samples, rank);
    if (const auto found = traffic.find(group); found != traffic.end())
      sent = std::max(sent, found->second / samples.steps());
  }
  return mebibytes(held) + " gathered and unreduced, " + mebibytes(sent) + " sent";
}

/// Tells whether the strategy can gather in another way.
bool reshards(const Plan& plan, const std::string& module) {
  return !plan.options.meshes[module].reshard_after_forward.is_auto() ||
         detail::may_gather_for_each_use(plan.options.meshes[module]);
}

std::string why(const Plan& plan, const std::string& module, bool once) {
  const AutoOption& asked = plan.options.meshes[module].reshard_after_forward;
  if (asked.is_yes()) return "reshard_after_forward = true";
  if (asked.is_no()) return "reshard_after_forward = false";
  if (!reshards(plan, module)) return "strategy = \"" + plan.options.meshes[module].strategy + "\"";
  const MeshOptions& mesh = plan.options.mesh;
  const std::string held = "mesh.memory_mib", all = "mesh.rank_memory_mib", either = " or ";
  if (mesh.memory_mib == 0 && mesh.rank_memory_mib == 0)
    return "auto, which gathers for each use only where " + held + either + all + " asks for it";
  const std::string limit = mesh.rank_memory_mib == 0 ? held
                            : mesh.memory_mib == 0    ? all
                                                      : held + either + all;
  return once ? "auto: within " + limit : "auto: more than " + limit + " otherwise";
}

/// The first rank that has a part of the module and sends most.
const RankTraffic& most_sent(const Plan& plan, const StepFacts& facts, const std::string& module) {
  const auto sent = [&](const RankTraffic& rank) {
    return plan.mesh.has(rank.rank, module) ? rank.total() : -1;
  };
  return *std::ranges::max_element(facts.traffic, {}, sent);
}

constexpr double kUsualMfu = 0.4;

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
  const auto mean = [&](const RankTraffic& of) { return mebibytes(of.total() / facts.steps); };
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

std::string describe_gathering(const Plan& plan, const StepSamples& samples) {
  if (plan.pipeline.is_one_group()) return "";
  std::string text;
  for (const std::string& module : plan.model.modules()) {
    const Sharding* sharding = gathered_sharding(plan, module);
    if (sharding == nullptr) continue;
    const bool once = sharding->keeps_for_step;
    const char* ways[] = {"each time that a unit needs it", "once a step"};
    text += "  " + module + ": gathered " + ways[once] + " (" + why(plan, module, once) +
            "): " + cost_of(plan, module, samples);
    if (reshards(plan, module))
      text += std::string("; ") + ways[!once] + ": " +
              cost_of(gathered_otherwise(plan, {module}, !once), module, samples);
    text += "\n";
  }
  if (text.empty()) return text;
  return "sharded units in this pipeline, per rank and step\n" + text;
}

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
      return mebibytes(rank.total() / samples.steps());
    };
    text += "  " + module + ": in bf16 (precision." + module + ".reduce_dtype): rank " +
            std::to_string(now.rank) + " sends " + per_step(now) + " a step in group of " +
            per_step(otherwise) + ", " + mebibytes(spared) +
            " less than in fp32; every gradient, and every sum on its way, is rounded to 8 bits, "
            "by up to 0.4 %\n";
  }
  return text.empty() ? text : "gradients summed between ranks\n" + text;
}

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
        "\n  the rank with most computes %.4g TFLOP of it, with units that are recomputed; "
        "ranks would wait for %.1f %% of their time if messages took none",
        facts.slowest_flops / 1e12, 100 * facts.idle_share);
  return line + "\n";
}

std::string describe_steps(const Plan& plan, const StepSamples& samples, const StepFacts& facts) {
  std::string text = samples.steps_text(plan) + (samples.is_real ? " of " : ": ") + samples.source +
                     "\n" + counts_line(plan, facts) + idle_encoders(plan, samples);
  text += describe_gathering(plan, samples) + describe_reductions(plan, samples, facts);
  text += "bytes in " + step_name(plan) + " " + std::to_string(facts.memory_step + 1) +
          " on the rank that needs most: " + describe(facts.memory) + "\n";
  return text + describe_flops(plan, samples, facts) + traffic_lines(plan, samples, facts);
}

}  // namespace zea
