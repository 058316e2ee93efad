// SPDX-License-Identifier: Apache-2.0
#include "estimate/fitting_plan.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "core/error.hpp"
#include "core/text.hpp"
#include "estimate/memory_estimate.hpp"
#include "schedule/plan.hpp"
#include "spec/recomputed_values.hpp"
#include "spec/stage_template.hpp"

namespace zea {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

/// The cost of selective recomputation, as a share of a unit's forward: two or three passes over
/// tensors that GEMMs read, too.
constexpr double kSelectiveShare = 0.1;

bool has_recomputed(const ModelSpec& model, int unit) {
  return std::ranges::any_of(last_readers_of_recomputed(model, model.units[unit]),
                             [](int reader) { return reader >= 0; });
}

/// Units of a stage group that may be recomputed, in walking order.
std::vector<int> candidates(const Plan& plan, size_t group) {
  std::vector<int> found;
  for (int stage : plan.pipeline.stage_groups[group].stages)
    for (int unit : plan.pipeline.stages[stage].units)
      if (plan.model.units[unit].kind != UnitKind::Head) found.push_back(unit);
  return found;
}

/// The choice at one stage group; what others recompute does not matter here.
class RecomputationChoice {
 public:
  RecomputationChoice(const Plan& plan, size_t group)
      : plan_(plan),
        rank_(plan.pipeline.stage_groups[group].first_rank),
        units_(candidates(plan, group)),
        microbatches_(static_cast<size_t>(predicted_microbatches(plan)), full_microbatch(plan)),
        limit_(static_cast<int64_t>(plan.options.mesh.rank_memory_mib * kMebibyte)) {}

  /// Plan::recomputed with those of this stage group: the cheaper of two ways to choose; all, where
  /// no choice fits.
  std::vector<Recompute> chosen() {
    std::vector<Recompute> none = plan_.recomputed;
    if (fits()) return none;
    std::vector<std::pair<double, std::vector<Recompute>>> found;
    for (const bool by_share : {true, false}) {
      plan_.recomputed = none;
      fill(order(by_share));
      if (fits()) found.emplace_back(recomputed_cost(), plan_.recomputed);
    }
    return found.empty() ? plan_.recomputed : std::ranges::min(found).second;
  }

 private:
  int64_t bytes() const { return estimate_run(plan_, rank_, microbatches_).with_graphs(); }
  bool fits() const { return bytes() <= limit_; }

  /// Returns the cost of recomputing a unit in this way.
  double cost(int unit, Recompute what) const {
    return recomputed_share(what) * plan_.unit_costs[unit].forward;
  }

  double recomputed_cost() const {
    double sum = 0;
    for (int unit : units_) sum += cost(unit, plan_.recomputed[unit]);
    return sum;
  }

  /// A unit that may be recomputed, and how.
  struct Step {
    int unit;
    Recompute what;
  };

  /// Returns the steps that free memory by ascending cost, for each byte that one alone would free
  /// or in all.
  std::vector<Step> order(bool by_share) {
    const int64_t all = bytes();
    std::vector<std::pair<double, Step>> ranked;
    for (int unit : units_)
      for (const Recompute what : {Recompute::Selective, Recompute::Full}) {
        if (what == Recompute::Selective && !has_recomputed(plan_.model, unit)) continue;
        plan_.recomputed[unit] = what;
        const auto freed = static_cast<double>(all - bytes());
        plan_.recomputed[unit] = Recompute::None;
        const double share = freed > 0 ? cost(unit, what) / freed : HUGE_VAL;
        ranked.push_back({by_share ? share : cost(unit, what), {unit, what}});
      }
    std::ranges::stable_sort(ranked, {}, &std::pair<double, Step>::first);
    std::vector<Step> steps;
    for (const auto& [key, step] : ranked) steps.push_back(step);
    return steps;
  }

  /// Recomputes units in order until the plan fits, then undoes what it does not need.
  void fill(const std::vector<Step>& steps) {
    std::vector<int> taken;
    for (size_t i = 0; i < steps.size() && !fits(); ++i) {
      const auto [unit, what] = steps[i];
      if (plan_.recomputed[unit] == Recompute::None) taken.push_back(unit);
      plan_.recomputed[unit] = std::max(plan_.recomputed[unit], what);
    }
    if (!fits()) return;
    const auto cost_now = [&](int unit) { return cost(unit, plan_.recomputed[unit]); };
    std::ranges::stable_sort(taken, std::greater(), cost_now);
    for (int unit : taken)
      for (const Recompute what : {Recompute::None, Recompute::Selective}) {
        const Recompute now = plan_.recomputed[unit];
        if (now <= what) continue;
        plan_.recomputed[unit] = what;
        if (fits()) break;
        plan_.recomputed[unit] = now;
      }
  }

  Plan plan_;
  int rank_;
  std::vector<int> units_;
  std::vector<MicrobatchSizes> microbatches_;
  int64_t limit_;
};

std::string whole_mebibytes(int64_t bytes) {
  return std::to_string((bytes + kMebibyte - 1) / kMebibyte) + " MiB";
}

/// Returns the settings with which modules at a stage group that stay gathered after a use would be
/// dropped.
std::string dropping(const Plan& plan, size_t group) {
  std::string text;
  for (const std::string& module : plan.model.modules())
    for (const int g : plan.held_buffers(plan.pipeline.stage_groups[group].first_rank)) {
      const Sharding& sharding = plan.shardings[g];
      if (plan.buffers[g].module != module || !sharding.gathered() || sharding.shards == 1 ||
          !(sharding.keeps_for_step || sharding.keeps_until_backward))
        continue;
      text += ", set mesh." + module + ".reshard_after_forward = true (strategy " +
              "\"full_shard\" or \"hybrid_shard\")";
      break;
    }
  return text;
}

/// The modules at a stage group whose shards could lie in host memory.
std::string offloading(const Plan& plan, size_t group) {
  std::set<std::string> modules;
  for (const int g : plan.held_buffers(plan.pipeline.stage_groups[group].first_rank)) {
    const std::string& module = plan.buffers[g].module;
    if (plan.options.meshes[module].strategy != ShardingStrategy::NoShard &&
        !plan.shardings[g].offloads)
      modules.insert(module);
  }
  const RunOptions& run = plan.options.run;
  std::string text;
  if (run.device != DeviceKind::Cpu && run.cuda_graphs == 0)
    for (const std::string& module : modules)
      text += ", set mesh." + module + ".cpu_offload = true";
  return text;
}

/// Returns other settings that take less memory: fewer samples if the KV cache makes the peak.
std::string other_ways(const Plan& plan, const MemoryEstimate& needed, bool may_choose) {
  if (needed.keys > 0)
    return ", generate for fewer samples at once (schedule.global_batch, eval.samples; kept keys "
           "take " +
           whole_mebibytes(needed.keys) + ")";
  const bool recomputes = may_choose || plan.options.run.mode != RunMode::Train;
  return recomputes ? "" : ", set model.activation_checkpointing = \"auto\"";
}

[[noreturn]] void refuse(const Plan& plan, size_t group, const MemoryEstimate& needed,
                         bool may_choose) {
  throw PlanError(
      formatted("mesh.rank_memory_mib = %g: a rank of group ", plan.options.mesh.rank_memory_mib) +
      plan.pipeline.stage_groups[group].name + " needs " + whole_mebibytes(needed.with_graphs()) +
      " by the estimate" + (may_choose ? ", with every unit recomputed in backward" : "") +
      "; shard over more ranks, cut layers (tp, pp) or rows (cp, data.row_tokens)" +
      dropping(plan, group) + offloading(plan, group) + other_ways(plan, needed, may_choose) +
      ", or raise the limit");
}

}  // namespace

double recomputed_share(Recompute what) {
  if (what == Recompute::None) return 0;
  return what == Recompute::Full ? 1 : kSelectiveShare;
}

Plan make_fitting_plan(const Options& options, const std::string& config_json, int world_size,
                       const std::string& profile) {
  Plan made = make_plan(options, config_json, world_size, profile);
  if (options.mesh.rank_memory_mib == 0) return made;
  const auto limit = static_cast<int64_t>(options.mesh.rank_memory_mib * kMebibyte);
  const bool may_choose =
      options.run.mode == RunMode::Train && options.model.activation_checkpointing.is_auto();
  const std::vector<MicrobatchSizes> full(static_cast<size_t>(predicted_microbatches(made)),
                                          full_microbatch(made));
  const auto needed = [&full](const Plan& tried, size_t group) {
    return estimate_run(tried, tried.pipeline.stage_groups[group].first_rank, full);
  };
  const auto recomputed = [may_choose](Plan tried) {
    for (size_t group = 0; may_choose && group < tried.pipeline.stage_groups.size(); ++group)
      tried.recomputed = RecomputationChoice(tried, group).chosen();
    return tried;
  };
  Plan plan = recomputed(made);
  std::vector<char> beyond;
  for (size_t group = 0; group < plan.pipeline.stage_groups.size(); ++group)
    beyond.push_back(needed(plan, group).with_graphs() > limit);
  if (std::ranges::count(beyond, 1) == 0) return plan;
  plan = recomputed(
      detail::gathered_within(made, [&](const Plan&, size_t group) { return beyond[group] != 0; }));
  for (size_t group = 0; group < plan.pipeline.stage_groups.size(); ++group)
    if (const MemoryEstimate most = needed(plan, group); most.with_graphs() > limit)
      refuse(plan, group, most, may_choose);
  return plan;
}

std::string describe_recomputation(const Plan& plan) {
  const AutoOption& asked = plan.options.model.activation_checkpointing;
  if ((!asked.is_auto() && !asked.is_selective()) || plan.options.run.mode != RunMode::Train)
    return "";
  std::vector<int> whole, selective, nothing;
  double again = 0, all = 0;
  for (size_t u = 0; u < plan.model.units.size(); ++u) {
    const auto unit = static_cast<int>(u);
    const Recompute what = plan.recomputed[u];
    all += plan.unit_costs[u].total();
    again += recomputed_share(what) * plan.unit_costs[u].forward;
    if (what == Recompute::Full) whole.push_back(unit);
    if (what == Recompute::Selective)
      (has_recomputed(plan.model, unit) ? selective : nothing).push_back(unit);
  }
  std::string text;
  const auto add = [&](const char* what, const std::vector<int>& units) {
    if (units.empty()) return;
    text += (text.empty() ? "" : "; ") + (what + unit_names(plan.model, units));
  };
  add("", whole);
  add("selective (outputs of norms and activations): ", selective);
  if (text.empty())
    text = asked.is_auto() ? "nothing, all fits" : "nothing";
  else
    text += formatted(", about %.1f %% more computation", all > 0 ? 100 * again / all : 0);
  add("nothing to recompute in: ", nothing);
  return "recomputed in backward: " + text + "\n";
}

}  // namespace zea
