// SPDX-License-Identifier: Apache-2.0
// Attention of a few queries to keys that are distributed over cp ranks, in decoding: sending the
// queries and their results takes less time than sending the keys.
#include "parallel/context_attention.hpp"

#include <numeric>

#include "core/error.hpp"
#include "parallel/torch_dtype.hpp"

namespace zea {
namespace {

using at::Tensor;

int64_t sum_before(const std::vector<int64_t>& counts, int64_t end) {
  return std::accumulate(counts.begin(), counts.begin() + end, int64_t{0});
}

/// Rows of all members, in order; `rows` of each.
Tensor gather_rows(Collectives* group, const Tensor& x, const std::vector<int64_t>& rows) {
  if (!group || group->size() == 1) return x;
  std::vector<int64_t> shape = x.sizes().vec();
  shape[0] = sum_before(rows, std::ssize(rows));
  Tensor all = at::empty(shape, x.options());
  if (all.numel() == 0) return all;
  Counts counts;
  for (int64_t count : rows) counts.push_back(count * (all.numel() / all.size(0)));
  const Tensor here = x.contiguous();
  group->all_gather(here.const_data_ptr(), all.mutable_data_ptr(), counts, dtype_of(x)).wait();
  return all;
}

/// Merges what each member has: (queries, heads, head_dim + 1), the last being log-sum-exps.
Tensor merge_members(Collectives* group, const Tensor& packed) {
  if (!group || group->size() == 1) return packed;
  const std::vector<int64_t> rows(group->size(), packed.size(0));
  const Tensor all = gather_rows(group, packed, rows).unflatten(0, {group->size(), packed.size(0)});
  const int64_t dim = packed.size(2) - 1;
  const Tensor parts = all.narrow(3, dim, 1);
  const Tensor lse = parts.logsumexp(0, true);
  // No key of any member so far: the weights of nothing are 0, not 0 / 0.
  const Tensor weights = (parts - lse.clamp_min(-1e30)).exp();
  return at::cat({(all.narrow(3, 0, dim) * weights).sum(0), lse.squeeze(0)}, 2);
}

/// The queries of all cp ranks on each of them. All calls but own() are collective over both groups
/// (null: a group of one).
class SpreadQueries {
 public:
  /// `cp_tokens`: queries of each cp rank, of which rank r is member r % inner of inner group
  /// r / inner.
  SpreadQueries(const std::vector<int64_t>& cp_tokens, Collectives* inner, Collectives* outer);

  /// Gathers q (queries of this rank, heads, head_dim) -> the queries of all ranks, in order of
  /// rank.
  Tensor gather(const Tensor& q) const;
  /// Merges the results of all ranks' keys, given those of the own keys: (queries of all ranks,
  /// heads, head_dim).
  AttentionSums merged(const AttentionSums& sums) const;
  /// The rows of this rank's queries.
  Tensor own(const Tensor& x) const;

 private:
  std::vector<int64_t> inner_tokens_;  ///< tokens of the own inner group's members
  std::vector<int64_t> outer_tokens_;  ///< tokens of all inner groups
  int64_t first_ = 0;                  ///< index of this rank's first query
  int64_t count_ = 0;
  Collectives* inner_;
  Collectives* outer_;
};

SpreadQueries::SpreadQueries(const std::vector<int64_t>& cp_tokens, Collectives* inner,
                             Collectives* outer)
    : inner_(inner), outer_(outer) {
  const int64_t members = inner ? inner->size() : 1, groups = outer ? outer->size() : 1;
  ZEA_ASSERT(std::ssize(cp_tokens) == members * groups);
  const int64_t member = inner ? inner->rank() : 0, group = outer ? outer->rank() : 0;
  for (int64_t g = 0; g < groups; ++g)
    outer_tokens_.push_back(sum_before(cp_tokens, (g + 1) * members) -
                            sum_before(cp_tokens, g * members));
  inner_tokens_ = {cp_tokens.begin() + group * members, cp_tokens.begin() + (group + 1) * members};
  first_ = sum_before(cp_tokens, group * members + member);
  count_ = cp_tokens[group * members + member];
}

Tensor SpreadQueries::gather(const Tensor& q) const {
  ZEA_ASSERT(q.size(0) == count_);
  return gather_rows(outer_, gather_rows(inner_, q, inner_tokens_), outer_tokens_);
}

AttentionSums SpreadQueries::merged(const AttentionSums& sums) const {
  const Tensor packed = at::cat({sums.out, sums.lse.unsqueeze(-1)}, 2);
  const Tensor all = merge_members(outer_, merge_members(inner_, packed));
  const int64_t dim = all.size(2) - 1;
  return {all.narrow(2, 0, dim).contiguous(), all.select(2, dim)};
}

Tensor SpreadQueries::own(const Tensor& x) const {
  return x.narrow(0, first_, count_);
}

}  // namespace

Tensor cached_context_attention(const Tensor& q, const Tensor& kv,
                                const std::vector<AttentionSlice>& slices,
                                const std::vector<int64_t>& cp_tokens, Collectives* inner,
                                Collectives* outer, const AttentionScores& scores) {
  const SpreadQueries queries(cp_tokens, inner, outer);
  const AttentionSums sums =
      queries.merged(attend_by_group(queries.gather(q), kv, slices, scores.spec));
  if (scores.sinks) add_sinks(sums, scores);
  return queries.own(sums.out).flatten(1).to(q.scalar_type());
}

}  // namespace zea
