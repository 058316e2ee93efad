// SPDX-License-Identifier: Apache-2.0
#include "layout/row_exchange.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace zea {
namespace {

void append(TokenRuns& runs, TokenRange run) {
  if (run.length() > 0) runs.push_back(run);
}

TokenRuns common(const TokenRuns& a, const TokenRuns& b) {
  TokenRuns both;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    append(both, {std::max(a[i].begin, b[j].begin),
                  std::max(std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end))});
    if (a[i].end < b[j].end)
      ++i;
    else
      ++j;
  }
  return both;
}

TokenRuns without(const TokenRuns& all, const TokenRuns& taken) {
  TokenRuns rest;
  size_t next = 0;
  for (TokenRange run : all) {
    while (next < taken.size() && taken[next].end <= run.begin) ++next;
    for (size_t t = next; t < taken.size() && taken[t].begin < run.end; ++t) {
      append(rest, {run.begin, std::max(run.begin, taken[t].begin)});
      run.begin = std::min(run.end, taken[t].end);
    }
    append(rest, run);
  }
  return rest;
}

}  // namespace

int64_t count_tokens(const TokenRuns& runs) {
  int64_t rows = 0;
  for (const TokenRange& run : runs) rows += run.length();
  return rows;
}

std::vector<int64_t> numbers_of(const TokenRuns& runs) {
  std::vector<int64_t> numbers;
  for (const TokenRange& run : runs)
    for (int64_t number = run.begin; number < run.end; ++number) numbers.push_back(number);
  return numbers;
}

RowExchange plan_row_exchange(const std::vector<TokenRuns>& held,
                              const std::vector<TokenRuns>& needed, int rank,
                              const std::vector<int>& parts) {
  ZEA_ASSERT(held.size() == needed.size());
  const int most = parts.empty() ? 0 : std::ranges::max(parts);
  const size_t ranks = held.size();
  RowExchange exchange;
  exchange.sends.resize(ranks);
  exchange.receives.resize(ranks);
  for (size_t taker = 0; taker < ranks; ++taker) {
    std::vector<TokenRuns> open_parts(static_cast<size_t>(most) + 1, needed[taker]);
    for (size_t step = 0; step < ranks; ++step) {
      const size_t holder = (taker + step) % ranks;
      TokenRuns& open = open_parts[parts.empty() ? 0 : static_cast<size_t>(parts[holder])];
      if (open.empty()) continue;
      const TokenRuns part = common(open, held[holder]);
      open = without(open, part);
      if (taker == static_cast<size_t>(rank)) exchange.receives[holder] = part;
      if (holder == static_cast<size_t>(rank)) exchange.sends[taker] = part;
    }
  }
  return exchange;
}

std::vector<int64_t> indices_of_rows(const TokenRuns& wanted, const TokenRuns& held) {
  std::vector<int64_t> indices;
  int64_t before = 0;  // rows of the runs of `held` that have been passed
  size_t at = 0;
  for (const TokenRange& run : wanted)
    for (int64_t row = run.begin; row < run.end; ++row) {
      while (held.at(at).end <= row) before += held[at++].length();
      ZEA_ASSERT(held[at].begin <= row);
      indices.push_back(before + row - held[at].begin);
    }
  return indices;
}

}  // namespace zea
