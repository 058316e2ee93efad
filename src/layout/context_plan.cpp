// SPDX-License-Identifier: Apache-2.0
#include "layout/context_plan.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "layout/token_layout.hpp"

namespace zea {
namespace {

using Runs = std::vector<TokenRange>;

/// A run of a member's tokens and its place in order of member.
struct PlacedRun {
  TokenRange tokens;
  int64_t place;
};

/// The runs of all members, ascending in the row.
std::vector<PlacedRun> place_runs(std::span<const Runs> members) {
  std::vector<PlacedRun> placed;
  int64_t place = 0;
  for (const Runs& runs : members)
    for (const TokenRange& run : runs) {
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

GroupTokens group_tokens(std::span<const Runs> owned) {
  GroupTokens group{.tokens = {}, .order = order_of(place_runs(owned))};
  for (const Runs& runs : owned) group.tokens.push_back(count_tokens(runs));
  return group;
}

ContextPlan make_context_plan(const Visibility& row,
                              const std::vector<std::vector<TokenRange>>& owned,
                              const ContextOptions& options, int rank) {
  const int inner = options.inner, group = rank / inner;
  ZEA_ASSERT(options.ranks == static_cast<int>(owned.size()) && options.ranks % inner == 0);
  ContextPlan plan;
  plan.exchange = options.exchange;
  std::vector<Runs> groups;
  const std::span<const Runs> all = owned;
  for (int first = 0; first < options.ranks; first += inner) {
    groups.push_back(joined(place_runs(all.subspan(first, inner))));
    plan.outer_tokens.push_back(count_tokens(groups.back()));
  }
  plan.inner = group_tokens(all.subspan(static_cast<size_t>(group) * inner, inner));
  for (const Runs& runs : owned) plan.rank_tokens.push_back(count_tokens(runs));
  for (const Runs& keys : groups) plan.slices.push_back(attention_slices(row, groups[group], keys));
  if (options.exchange == KvExchange::Gather)
    plan.slices = {joined(plan.slices, plan.outer_tokens)};
  return plan;
}

namespace {

/// How many tokens of ascending runs stand before a place of the row; places must not fall from
/// call to call.
class TokensBefore {
 public:
  explicit TokensBefore(const std::vector<TokenRange>& runs) : runs_(runs) {}

  int64_t operator()(int64_t place) {
    for (; next_ < runs_.size() && runs_[next_].end <= place; ++next_)
      passed_ += runs_[next_].length();
    if (next_ == runs_.size()) return passed_;
    return passed_ + std::max<int64_t>(place - runs_[next_].begin, 0);
  }

 private:
  const std::vector<TokenRange>& runs_;
  size_t next_ = 0;
  int64_t passed_ = 0;
};

/// A query sees the keys [key, end), one at least.
struct SeenKeys {
  int64_t query, key, end;
};

std::vector<SeenKeys> seen_keys(const Visibility& row, const std::vector<TokenRange>& queries,
                                const std::vector<TokenRange>& keys) {
  std::vector<SeenKeys> seen;
  TokensBefore before_begin(keys), before_end(keys);
  int64_t query = 0;
  for (const TokenRange& run : queries)
    for (int64_t token = run.begin; token < run.end; ++token, ++query) {
      const int64_t key = before_begin(row.begins[token]), end = before_end(row.ends[token]);
      if (key < end) seen.push_back({query, key, end});
    }
  return seen;
}

/// Neighbouring queries that see keys from `key` on: all of them to the same end, or (`grows`) each
/// one key more than the one before.
struct Band {
  int64_t query, queries;
  int64_t key, end;  ///< `end`: of the first query
  bool grows;

  int64_t last_end() const { return grows ? end + queries - 1 : end; }
  /// The end of what all queries see and a causal square does not cover.
  int64_t common_end() const { return grows ? end - 1 : end; }

  bool takes(int64_t next_query, int64_t next_key, int64_t next_end) const {
    if (next_query != query + queries || next_key != key) return false;
    const int64_t step = next_end - last_end();
    return queries == 1 ? step == 0 || step == 1 : step == (grows ? 1 : 0);
  }
};

std::vector<Band> bands_of(const std::vector<SeenKeys>& seen) {
  std::vector<Band> bands;
  for (const auto& [query, key, end] : seen) {
    if (!bands.empty() && bands.back().takes(query, key, end)) {
      bands.back().grows = bands.back().grows || end > bands.back().end;
      ++bands.back().queries;
    } else {
      bands.push_back({query, 1, key, end, false});
    }
  }
  return bands;
}

/// The keys that the bands see from `left` to their common ends is a staircase: the largest step is
/// cut off at half of the bands, and so on in what is left of it and below. Rectangles as near to
/// squares as can be are what kernels are fastest on.
void cut_staircase(const Band* first, const Band* last, int64_t left,
                   std::vector<AttentionSlice>& slices) {
  while (first != last && first->common_end() == left) ++first;
  if (first == last) return;
  const Band* middle = first + (last - first) / 2;
  const int64_t bottom = (last - 1)->query + (last - 1)->queries;
  slices.push_back(
      {middle->query, bottom - middle->query, left, middle->common_end() - left, SliceMask::None});
  cut_staircase(first, middle, left, slices);
  cut_staircase(middle, last, middle->common_end(), slices);
}

/// A band of queries that see keys from the same one on as long as they are neighbours.
std::vector<AttentionSlice> slices_of(const std::vector<SeenKeys>& seen) {
  const std::vector<Band> bands = bands_of(seen);
  std::vector<AttentionSlice> slices;
  for (const Band& band : bands)
    if (band.grows)
      slices.push_back(
          {band.query, band.queries, band.common_end(), band.queries, SliceMask::Causal});
  for (size_t first = 0, last; first < bands.size(); first = last) {
    for (last = first + 1; last < bands.size(); ++last) {
      const Band& before = bands[last - 1];
      if (bands[last].key != before.key || bands[last].query != before.query + before.queries)
        break;
    }
    cut_staircase(&bands[first], &bands[first] + (last - first), bands[first].key, slices);
  }
  return slices;
}

/// Queries and keys in reverse order, as numbers below 0.
SeenKeys reversed(const SeenKeys& seen) {
  return {-1 - seen.query, -seen.end, -seen.key};
}
AttentionSlice reversed(const AttentionSlice& slice) {
  return {-slice.query - slice.queries, slice.queries, -slice.key - slice.keys, slice.keys,
          slice.mask == SliceMask::Causal ? SliceMask::AntiCausal : SliceMask::None};
}

}  // namespace

/// Neighbours that all see some key are cut in two there, at the first key of the last of them:
/// from it on they see as many as there are; what they see before it is the same with queries and
/// keys in reverse order. Without windows the latter is nothing.
std::vector<AttentionSlice> attention_slices(const Visibility& row,
                                             const std::vector<TokenRange>& queries,
                                             const std::vector<TokenRange>& keys) {
  const std::vector<SeenKeys> seen = seen_keys(row, queries, keys);
  std::vector<SeenKeys> after, before;
  for (size_t first = 0, last; first < seen.size(); first = last) {
    for (last = first + 1; last < seen.size(); ++last)
      if (seen[last].query != seen[last - 1].query + 1 || seen[last].key >= seen[first].end) break;
    const int64_t middle = seen[last - 1].key;
    for (size_t i = first; i < last; ++i) {
      const auto [query, key, end] = seen[i];
      after.push_back({query, middle, end});
      if (key < middle) before.push_back(reversed(SeenKeys{query, key, middle}));
    }
  }
  std::ranges::reverse(before);
  std::vector<AttentionSlice> slices = slices_of(after);
  for (const AttentionSlice& slice : slices_of(before)) slices.push_back(reversed(slice));
  return slices;
}

}  // namespace zea
