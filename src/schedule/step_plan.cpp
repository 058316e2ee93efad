// SPDX-License-Identifier: Apache-2.0
#include "schedule/step_plan.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/error.hpp"

namespace zea {
namespace {

using detail::Costs;
using detail::Ids;
using detail::Rows;

void check_lengths(const Ids& samples, const SampleTable& index, int64_t row_tokens) {
  for (int64_t id : samples)
    if (index[id].tokens > row_tokens)
      throw DataError("sample " + std::to_string(id) + " has " + std::to_string(index[id].tokens) +
                      " tokens, more than data.row_tokens = " + std::to_string(row_tokens) +
                      "; raise data.row_tokens or leave the sample out");
}

std::vector<Costs> in_groups(const std::vector<double>& numbers, size_t each) {
  std::vector<Costs> groups;
  for (size_t begin = 0; begin < numbers.size(); begin += each)
    groups.push_back(Costs(numbers).subspan(begin, each));
  return groups;
}

/// Knows samples by their positions in the global batch.
class StepPlanner {
 public:
  StepPlanner(const Ids& samples, const SampleTable& index, const StepPlanOptions& options)
      : options_(options) {
    for (const int64_t id : samples) {
      lengths_.push_back(index[id].tokens);
      for (const SampleCosts& of_set : options.costs)
        numbers_.push_back(sample_cost(index[id], of_set));
    }
    costs_ = in_groups(numbers_, options.costs.size());
  }

  /// Returns the microbatches of each replica: as many on all of them, the last ones possibly
  /// empty.
  std::vector<std::vector<Rows>> deal() const {
    std::vector<std::vector<Rows>> replicas;
    size_t most = 0;
    const std::vector<Ids> shares =
        options_.balance ? *detail::distribute_longest_first(costs_, options_.replicas)
                         : detail::distribute_round_robin(std::ssize(lengths_), options_.replicas);
    for (const Ids& share : shares) {
      replicas.push_back(detail::pack_in_order(share, lengths_, options_));
      most = std::max(most, replicas.back().size());
    }
    for (size_t replica = 0; replica < replicas.size(); ++replica) {
      if (options_.balance) balance(shares[replica], static_cast<int>(most), replicas[replica]);
      replicas[replica].resize(most);
    }
    return replicas;
  }

 private:
  /// Makes the microbatches alike. Where rows are so full that samples do not fit that way, the
  /// longest go first; where that does not help either, microbatches stay as they are.
  void balance(const Ids& share, int microbatches, std::vector<Rows>& packed) const {
    std::vector<Costs> costs;
    std::vector<double> lengths;
    for (const int64_t position : share) {
      costs.push_back(costs_[position]);
      lengths.push_back(static_cast<double>(lengths_[position]));
    }
    for (const std::vector<Costs>& weights : {costs, in_groups(lengths, 1)})
      if (auto balanced = detail::pack_by_cost(share, weights, lengths_, options_, microbatches)) {
        packed = std::move(*balanced);
        break;
      }
    sort_by_load(packed);
  }

  /// So that microbatches of all replicas that run at the same time are alike.
  void sort_by_load(std::vector<Rows>& microbatches) const {
    std::vector<std::pair<double, Rows>> loaded;
    for (Rows& rows : microbatches) {
      double load = 0;
      for (const Ids& row : rows)
        for (const int64_t position : row)
          for (const double cost : costs_[position]) load += cost;
      loaded.emplace_back(load, std::move(rows));
    }
    std::stable_sort(loaded.begin(), loaded.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (size_t m = 0; m < microbatches.size(); ++m) microbatches[m] = std::move(loaded[m].second);
  }

  const StepPlanOptions& options_;
  Ids lengths_;                  ///< of each sample
  std::vector<double> numbers_;  ///< of each sample and set of ranks
  std::vector<Costs> costs_;     ///< these, of each sample
};

MicrobatchPlan count_microbatch(const Rows& rows, const Ids& samples, const SampleTable& index) {
  MicrobatchPlan microbatch;
  microbatch.rows = static_cast<int64_t>(rows.size());
  for (const Ids& row : rows)
    for (const int64_t position : row) {
      const int64_t id = samples[position];
      microbatch.samples.push_back(id);
      const SampleIndex sample = index[id];
      microbatch.tokens += sample.tokens;
      microbatch.targets += sample.targets;
      microbatch.items += sample.items;
    }
  return microbatch;
}

void add_kinds(MicrobatchKinds& kinds, const MicrobatchKinds& more) {
  for (const MicrobatchKind& kind : more)
    if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
}

/// Tells each microbatch how many tokens those have that run with it on the replicas of its group.
void count_expert_tokens(StepPlan& plan) {
  const auto group = static_cast<size_t>(plan.expert_group);
  for (size_t first = 0; first < plan.replicas.size(); first += group)
    for (size_t m = 0; m < static_cast<size_t>(plan.num_microbatches()); ++m) {
      std::vector<int64_t> tokens;
      for (size_t r = first; r < first + group; ++r) tokens.push_back(plan.replicas[r][m].tokens);
      for (size_t r = first; r < first + group; ++r) plan.replicas[r][m].expert_tokens = tokens;
    }
}

}  // namespace

StepPlan count_step(std::vector<std::vector<MicrobatchPlan>> replicas, int shard_group,
                    int expert_group) {
  StepPlan plan;
  plan.replicas = std::move(replicas);
  plan.shard_group = shard_group;
  plan.expert_group = expert_group;
  if (expert_group > 1) count_expert_tokens(plan);
  const std::vector<MicrobatchKinds> none(static_cast<size_t>(plan.num_microbatches()));
  plan.group_kinds.assign(plan.replicas.size() / static_cast<size_t>(shard_group), none);
  plan.kinds = none;
  for (size_t r = 0; r < plan.replicas.size(); ++r)
    for (size_t m = 0; m < none.size(); ++m) {
      const MicrobatchPlan& microbatch = plan.replicas[r][m];
      plan.samples += static_cast<int64_t>(microbatch.samples.size());
      plan.tokens += microbatch.tokens;
      plan.targets += microbatch.targets;
      add_kinds(plan.group_kinds[r / static_cast<size_t>(shard_group)][m], {microbatch.kind()});
    }
  for (const std::vector<MicrobatchKinds>& group : plan.group_kinds)
    for (size_t m = 0; m < none.size(); ++m) add_kinds(plan.kinds[m], group[m]);
  return plan;
}

StepShape shape_of(const StepPlan& step, const SampleTable& index) {
  StepShape shape;
  for (const std::vector<MicrobatchPlan>& microbatches : step.replicas) {
    shape.emplace_back();
    for (const MicrobatchPlan& microbatch : microbatches) {
      std::vector<SampleIndex>& counts = shape.back().emplace_back();
      for (const int64_t id : microbatch.samples) counts.push_back(index[id]);
    }
  }
  return shape;
}

StepPlan moved(StepPlan step, int distance) {
  const auto rotate = [distance](auto& of_replicas) {
    std::rotate(of_replicas.begin(), of_replicas.begin() + distance, of_replicas.end());
  };
  rotate(step.replicas);
  if (!step.shape.empty()) rotate(step.shape);
  StepPlan counted = count_step(std::move(step.replicas), step.shard_group, step.expert_group);
  counted.step = step.step;
  counted.model_flops = step.model_flops;
  counted.unmasked_flops = step.unmasked_flops;
  counted.shape = std::move(step.shape);
  return counted;
}

int replay_distance(const StepPlanOptions& options) {
  if (options.replicas > options.shard_group) return options.shard_group;
  return options.replicas > options.expert_group ? options.expert_group : 0;
}

StepPlan make_step_plan(int64_t step, const std::vector<int64_t>& samples, const SampleTable& index,
                        const StepPlanOptions& options) {
  check_lengths(samples, index, options.row_tokens);
  std::vector<std::vector<MicrobatchPlan>> replicas;
  for (const std::vector<Rows>& microbatches : StepPlanner(samples, index, options).deal()) {
    replicas.emplace_back();
    for (const Rows& rows : microbatches)
      replicas.back().push_back(count_microbatch(rows, samples, index));
  }
  StepPlan plan = count_step(std::move(replicas), options.shard_group, options.expert_group);
  plan.step = step;
  return plan;
}

StepPlan plan_of_next_tokens(StepPlan prompts) {
  for (std::vector<MicrobatchPlan>& microbatches : prompts.replicas)
    for (MicrobatchPlan& part : microbatches) {
      part.items = {};
      part.tokens = std::ssize(part.samples);
      part.targets = 0;
    }
  return count_step(std::move(prompts.replicas), prompts.shard_group, prompts.expert_group);
}

}  // namespace zea
