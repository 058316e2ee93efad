// SPDX-License-Identifier: Apache-2.0
#include "row_packing.hpp"

#include <algorithm>
#include <limits>

namespace zea::detail {
namespace {

/// Rows that samples are added to, at most so many of them.
class OpenRows {
 public:
  OpenRows(const StepPlanOptions& options, int64_t most_rows)
      : packing_(options.packing), row_tokens_(options.row_tokens), most_rows_(most_rows) {}

  /// Puts what has so many tokens into the first row that has room; false where none has.
  bool take(int64_t thing, int64_t tokens) {
    size_t row = packing_ ? 0 : rows_.size();
    while (row < rows_.size() && used_[row] + tokens > row_tokens_) ++row;
    if (row == rows_.size()) {
      if (static_cast<int64_t>(row) == most_rows_) return false;
      rows_.emplace_back();
      used_.push_back(0);
    }
    rows_[row].push_back(thing);
    used_[row] += tokens;
    return true;
  }

  const Rows& rows() const { return rows_; }

 private:
  bool packing_;
  int64_t row_tokens_;
  int64_t most_rows_;
  Rows rows_;
  std::vector<int64_t> used_;
};

}  // namespace

std::vector<Rows> pack_in_order(const Ids& share, const std::vector<SampleIndex>& index,
                                const StepPlanOptions& options) {
  OpenRows open(options, std::numeric_limits<int64_t>::max());
  for (const int64_t id : share) open.take(id, index[id].tokens);
  std::vector<Rows> microbatches;
  for (const Ids& row : open.rows()) {
    const bool is_full = microbatches.empty() || static_cast<int64_t>(microbatches.back().size()) ==
                                                     options.rows_per_microbatch;
    if (is_full) microbatches.emplace_back();
    microbatches.back().push_back(row);
  }
  return microbatches;
}

std::optional<std::vector<Rows>> pack_by_cost(const Ids& share, const std::vector<Costs>& costs,
                                              const std::vector<SampleIndex>& index,
                                              const StepPlanOptions& options, int microbatches) {
  std::vector<OpenRows> open(microbatches, OpenRows(options, options.rows_per_microbatch));
  const auto dealt = deal_longest_first(costs, microbatches, [&](int taker, int64_t position) {
    return open[taker].take(position, index[share[position]].tokens);
  });
  if (!dealt) return std::nullopt;
  std::vector<Rows> packed;
  for (const OpenRows& of_microbatch : open) {
    Rows rows = of_microbatch.rows();
    for (Ids& row : rows) std::sort(row.begin(), row.end());
    std::sort(rows.begin(), rows.end());
    for (Ids& row : rows)
      for (int64_t& position : row) position = share[position];
    packed.push_back(std::move(rows));
  }
  return packed;
}

}  // namespace zea::detail
