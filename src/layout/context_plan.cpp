// SPDX-License-Identifier: Apache-2.0
#include "layout/context_plan.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "layout/row_exchange.hpp"

namespace zea {
namespace {

using Runs = std::vector<TokenRange>;

/// A run of a member's tokens and its place in order of member.
struct PlacedRun {
  TokenRange tokens;
  int64_t place;
};

/// The runs of all members, ascending in the row.
std::vector<PlacedRun> place_runs(const Runs* members, size_t count) {
  std::vector<PlacedRun> placed;
  int64_t place = 0;
  for (size_t m = 0; m < count; ++m)
    for (const TokenRange& run : members[m]) {
      placed.push_back({run, place});
      place += run.length();
    }
  std::sort(placed.begin(), placed.end(),
            [](const PlacedRun& a, const PlacedRun& b) { return a.tokens.begin < b.tokens.begin; });
  return placed;
}

/// For each token of all members, ascending, its place in order of member; empty where that is the
/// order.
std::vector<int64_t> order_of(const std::vector<PlacedRun>& placed) {
  std::vector<int64_t> order;
  bool in_order = true;
  for (const PlacedRun& run : placed) {
    in_order = in_order && run.place == static_cast<int64_t>(order.size());
    for (int64_t i = 0; i < run.tokens.length(); ++i) order.push_back(run.place + i);
  }
  return in_order ? std::vector<int64_t>{} : order;
}

Runs joined(const std::vector<PlacedRun>& placed) {
  Runs runs;
  for (const auto& [tokens, place] : placed) {
    if (!runs.empty() && runs.back().end == tokens.begin)
      runs.back().end = tokens.end;
    else
      runs.push_back(tokens);
  }
  return runs;
}

/// Slices with the keys of each group as one list, with all keys one after the other.
std::vector<AttentionSlice> joined(const std::vector<std::vector<AttentionSlice>>& of_groups,
                                   const std::vector<int64_t>& tokens) {
  std::vector<AttentionSlice> slices;
  int64_t before = 0;
  for (size_t g = 0; g < of_groups.size(); before += tokens[g++])
    for (AttentionSlice slice : of_groups[g]) {
      slice.key += before;
      slices.push_back(slice);
    }
  return slices;
}

}  // namespace

ContextPlan make_context_plan(const Visibility& row,
                              const std::vector<std::vector<TokenRange>>& owned,
                              const ContextOptions& options, int rank) {
  const int inner = options.inner, group = rank / inner;
  ZEA_ASSERT(options.ranks == static_cast<int>(owned.size()) && options.ranks % inner == 0);
  ContextPlan plan;
  plan.exchange = options.exchange;
  std::vector<Runs> groups;
  for (int first = 0; first < options.ranks; first += inner) {
    const std::vector<PlacedRun> placed = place_runs(&owned[first], inner);
    if (first == group * inner) plan.inner_order = order_of(placed);
    groups.push_back(joined(placed));
    plan.outer_tokens.push_back(count_tokens(groups.back()));
  }
  for (int member = 0; member < inner; ++member)
    plan.inner_tokens.push_back(count_tokens(owned[group * inner + member]));

  for (const Runs& keys : groups) plan.slices.push_back(attention_slices(row, groups[group], keys));
  if (options.exchange == KeyExchange::Gather)
    plan.slices = {joined(plan.slices, plan.outer_tokens)};
  return plan;
}

}  // namespace zea
