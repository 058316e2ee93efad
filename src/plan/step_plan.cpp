// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/step_plan.hpp"

#include <algorithm>

#include "zea/core/error.hpp"
#include "zea/plan/deal.hpp"

namespace zea {
namespace {

using Ids = std::vector<int64_t>;

void check_lengths(const Ids& samples, const std::vector<SampleIndex>& index, int64_t row_tokens) {
  for (int64_t id : samples)
    if (index[id].tokens > row_tokens)
      throw DataError("sample " + std::to_string(id) + " has " + std::to_string(index[id].tokens) +
                      " tokens, more than data.row_tokens = " + std::to_string(row_tokens) +
                      "; raise data.row_tokens or leave the sample out");
}

/// Positions in `samples` of each replica, ascending: the order inside a replica is that of the
/// global batch.
std::vector<Ids> deal(const Ids& samples, const std::vector<SampleIndex>& index, int replicas) {
  std::vector<int64_t> tokens;
  for (int64_t id : samples) tokens.push_back(index[id].tokens);
  return deal_by_cost(tokens, replicas);
}

/// First fit in order: a sample goes into the first row that has room.
std::vector<Ids> pack(const Ids& samples, const std::vector<SampleIndex>& index,
                      const StepPlanOptions& options) {
  std::vector<Ids> rows;
  std::vector<int64_t> used;
  for (int64_t id : samples) {
    size_t row = options.packing ? 0 : rows.size();
    while (row < rows.size() && used[row] + index[id].tokens > options.row_tokens) ++row;
    if (row == rows.size()) {
      rows.emplace_back();
      used.push_back(0);
    }
    rows[row].push_back(id);
    used[row] += index[id].tokens;
  }
  return rows;
}

std::vector<MicrobatchPlan> group_rows(const std::vector<Ids>& rows,
                                       const std::vector<SampleIndex>& index,
                                       int64_t per_microbatch) {
  std::vector<MicrobatchPlan> microbatches;
  for (size_t row = 0; row < rows.size(); ++row) {
    if (row % per_microbatch == 0) microbatches.emplace_back();
    MicrobatchPlan& microbatch = microbatches.back();
    ++microbatch.rows;
    for (int64_t id : rows[row]) {
      microbatch.samples.push_back(id);
      microbatch.tokens += index[id].tokens;
      microbatch.targets += index[id].targets;
      microbatch.items += index[id].items;
    }
  }
  return microbatches;
}

}  // namespace

StepPlan make_step_plan(int64_t step, const std::vector<int64_t>& samples,
                        const std::vector<SampleIndex>& index, const StepPlanOptions& options) {
  check_lengths(samples, index, options.row_tokens);
  StepPlan plan;
  plan.step = step;
  plan.samples = static_cast<int64_t>(samples.size());
  size_t num_microbatches = 0;
  for (const auto& share : deal(samples, index, options.replicas)) {
    Ids own;
    for (int64_t position : share) own.push_back(samples[position]);
    plan.replicas.push_back(
        group_rows(pack(own, index, options), index, options.rows_per_microbatch));
    num_microbatches = std::max(num_microbatches, plan.replicas.back().size());
  }
  for (auto& microbatches : plan.replicas) {
    microbatches.resize(num_microbatches);
    for (const MicrobatchPlan& microbatch : microbatches) {
      plan.tokens += microbatch.tokens;
      plan.targets += microbatch.targets;
    }
  }
  return plan;
}

}  // namespace zea
