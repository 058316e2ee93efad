// SPDX-License-Identifier: Apache-2.0
#include "layout/scan_plan.hpp"

#include <algorithm>
#include <numeric>

namespace zea {
namespace {

/// A run as the tokens of a rank; none if it is empty.
TokenRuns runs_of(TokenRange run) {
  return run.length() > 0 ? TokenRuns{run} : TokenRuns{};
}

/// `held` and `needed`: of each member. Each row is held by one.
RowMoves row_moves(const std::vector<TokenRuns>& held, const std::vector<TokenRuns>& needed,
                   int rank) {
  const RowExchange exchange = plan_row_exchange(held, needed, rank);
  RowMoves moves;
  int64_t next = count_tokens(held[rank]);
  moves.order.resize(static_cast<size_t>(count_tokens(needed[rank])));
  for (size_t member = 0; member < held.size(); ++member) {
    const bool is_other = static_cast<int>(member) != rank;
    const TokenRuns &sent = exchange.sends[member], &received = exchange.receives[member];
    moves.sent_counts.push_back(is_other ? count_tokens(sent) : 0);
    moves.received_counts.push_back(is_other ? count_tokens(received) : 0);
    const std::vector<int64_t> from = indices_of_rows(sent, held[rank]);
    const std::vector<int64_t> to = indices_of_rows(received, needed[rank]);
    if (is_other) moves.sent.insert(moves.sent.end(), from.begin(), from.end());
    for (size_t i = 0; i < to.size(); ++i) moves.order[to[i]] = is_other ? next++ : from[i];
  }
  return moves;
}

/// Returns the first token of the sample that `token` belongs to.
int64_t begin_of_sample(const std::vector<Segment>& samples, int64_t token) {
  const auto next = std::ranges::upper_bound(samples, token, {}, &Segment::start);
  return std::prev(next)->start;
}

/// Returns the tokens that a rank reads: its run, and those of the same sample before
/// it that a convolution of `taps` tokens reaches.
TokenRange with_halo(const std::vector<Segment>& samples, TokenRange run, int64_t taps) {
  if (run.length() == 0) return run;
  return {std::max(begin_of_sample(samples, run.begin), run.begin - (taps - 1)), run.end};
}

/// Returns the bounds of the samples in `run`, from 0 on.
std::vector<int64_t> bounds_in(const std::vector<Segment>& samples, TokenRange run) {
  std::vector<int64_t> bounds{0};
  for (const Segment& sample : samples) {
    const int64_t end = std::min(sample.start + sample.length, run.end);
    if (end > std::max(run.begin, sample.start)) bounds.push_back(end - run.begin);
  }
  return bounds;
}

}  // namespace

int64_t RowMoves::rows_received() const {
  return std::accumulate(received_counts.begin(), received_counts.end(), int64_t{0});
}

std::vector<TokenRange> scan_runs(const std::vector<TokenRuns>& owned) {
  std::vector<TokenRange> runs;
  int64_t tokens = 0, next = 0;
  bool are_runs = true;
  for (const TokenRuns& of_rank : owned) {
    tokens += count_tokens(of_rank);
    are_runs = are_runs && (of_rank.empty() || (of_rank.size() == 1 && of_rank[0].begin == next));
    if (!of_rank.empty()) next = of_rank[0].end;
    runs.push_back(of_rank.empty() ? TokenRange{next, next} : of_rank[0]);
  }
  if (are_runs) return runs;
  const auto ranks = std::ssize(owned);
  for (int64_t r = 0; r < ranks; ++r) runs[r] = {tokens * r / ranks, tokens * (r + 1) / ranks};
  return runs;
}

bool owns_runs(const DistributionOptions& distribution) {
  return distribution.kind == TokenDistribution::Uniform ||
         (distribution.kind == TokenDistribution::MakespanMin && !distribution.counts_attention);
}

ScanPlan make_scan_plan(const std::vector<Segment>& samples, const std::vector<TokenRuns>& owned,
                        int64_t taps, int rank) {
  const std::vector<TokenRange> runs = scan_runs(owned);
  std::vector<TokenRuns> scanned, read;
  for (const TokenRange& run : runs) {
    scanned.push_back(runs_of(run));
    read.push_back(runs_of(with_halo(samples, run, taps)));
  }
  const TokenRange run = runs[rank];
  ScanPlan plan{.run = run,
                .halo = run.begin - with_halo(samples, run, taps).begin,
                .bounds = bounds_in(samples, run),
                .before = {},
                .after = {},
                .inputs = row_moves(owned, read, rank),
                .outputs = row_moves(scanned, owned, rank),
                .scans_own_tokens = scanned == owned};
  if (run.length() == 0) return plan;
  const int64_t first = begin_of_sample(samples, run.begin);
  for (int r = rank - 1; r >= 0 && runs[r].end > first && run.begin > first; --r)
    if (runs[r].length() > 0) plan.before.push_back(r);
  for (size_t r = rank + 1; r < runs.size(); ++r) {
    if (runs[r].length() == 0) continue;
    if (begin_of_sample(samples, runs[r].begin) >= run.end) break;
    plan.after.push_back(static_cast<int>(r));
  }
  return plan;
}

}  // namespace zea
