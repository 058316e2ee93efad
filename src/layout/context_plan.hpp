// SPDX-License-Identifier: Apache-2.0
// Context parallelism: what is exchanged between cp ranks, and which slices each computes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/attention_slice.hpp"
#include "layout/token_distribution.hpp"
#include "layout/visibility.hpp"

namespace zea {

// Attention read off what tokens see: a row is taken apart into rectangles of queries and keys that
// are visible throughout, causal squares, and anti-causal ones, with which windows begin. No tile
// that is masked throughout is among them.

/// The slices between the tokens `queries` and `keys` of a row (ascending runs; positions in a
/// slice count the tokens of these runs). Every visible pair lies in exactly one slice.
std::vector<AttentionSlice> attention_slices(const Visibility& row,
                                             const std::vector<TokenRange>& queries,
                                             const std::vector<TokenRange>& keys);

// The plan of context parallelism for one rank and one row: who owns which tokens, what is
// exchanged between the cp ranks of attention, and which slices each exchange lets this rank
// compute. Two levels: inside groups of neighbouring cp ranks tokens are exchanged for heads
// (DeepSpeed-Ulysses, arXiv:2309.14509), and between these groups keys and values travel: gathered
// at once, or passed around (Ring Attention, arXiv:2310.01889).

/// How keys and values get from one group of cp ranks to another.
enum class KvExchange { Gather, Ring };

struct ContextOptions {
  int ranks = 1;  ///< cp
  /// Neighbouring cp ranks that exchange tokens for heads; divides `ranks`. 1: none do; `ranks`:
  /// all.
  int inner = 1;
  KvExchange exchange = KvExchange::Gather;
  DistributionOptions distribution;
};

/// The tokens of a group of ranks that exchange tokens for heads.
struct GroupTokens {
  /// Tokens of each member, and their order after an exchange: the i-th token of the group
  /// (ascending in the row) is the order[i]-th in order of member. Empty: in order.
  std::vector<int64_t> tokens;
  std::vector<int64_t> order;
};

/// `owned`: of each member.
GroupTokens group_tokens(std::span<const std::vector<TokenRange>> owned);

/// cp rank r is member r % inner of inner group r / inner; its outer group is the members of the
/// same number of all inner groups, in order.
struct ContextPlan {
  KvExchange exchange = KvExchange::Gather;
  GroupTokens inner;
  /// Tokens of each cp rank.
  std::vector<int64_t> rank_tokens;
  /// Tokens of each inner group, in order of the outer group.
  std::vector<int64_t> outer_tokens;
  /// Gather: one entry, the slices between the group's tokens and all tokens of the row, these in
  /// order of the outer group. Ring: an entry for each inner group, the slices between the own
  /// group's tokens and that group's.
  std::vector<std::vector<AttentionSlice>> slices;
};

/// The tokens of each cp rank, ascending. The distribution deals them to the inner groups; members
/// of a group share its attention by heads, so they get equally many of its tokens. makespan_min
/// deals long samples zigzag, or the row zigzag or uniform, where these have no larger makespan
/// (one causal sample, few blocks), and never breaks its bound for them: with gathered keys the
/// makespan is at most 4/3 - 1/(3 groups) times the best that blocks allow.
/// Throws nothing; a rank may own no token. Pure and deterministic: every rank works out those of
/// all ranks.
std::vector<std::vector<TokenRange>> shard_tokens(const Visibility& row,
                                                  const ContextOptions& options);

/// Returns the cost of the row on the slowest rank, in tiles: where keys are passed around, the
/// slowest of each hop, added up. `owned`: of each inner group.
double makespan(const Visibility& row, const std::vector<std::vector<TokenRange>>& owned,
                KvExchange exchange, const DistributionOptions& options);

/// The part of cp rank `rank`, for tokens dealt as in `owned`.
ContextPlan make_context_plan(const Visibility& row,
                              const std::vector<std::vector<TokenRange>>& owned,
                              const ContextOptions& options, int rank);

}  // namespace zea
