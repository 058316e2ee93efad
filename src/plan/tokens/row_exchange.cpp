// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/tokens/row_exchange.hpp"

#include <algorithm>

#include "zea/core/error.hpp"

namespace zea {
namespace {

void append(RowRuns& runs, TokenRange run) {
  if (run.length() > 0) runs.push_back(run);
}

RowRuns common(const RowRuns& a, const RowRuns& b) {
  RowRuns both;
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

RowRuns without(const RowRuns& all, const RowRuns& taken) {
  RowRuns rest;
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

int64_t count_rows(const RowRuns& runs) {
  int64_t rows = 0;
  for (const TokenRange& run : runs) rows += run.length();
  return rows;
}

RowExchange plan_row_exchange(const std::vector<RowRuns>& held, const std::vector<RowRuns>& needed,
                              int rank) {
  ZEA_ASSERT(held.size() == needed.size());
  const size_t ranks = held.size();
  RowExchange exchange;
  exchange.sends.resize(ranks);
  exchange.receives.resize(ranks);
  for (size_t taker = 0; taker < ranks; ++taker) {
    RowRuns open = needed[taker];
    for (size_t step = 0; step < ranks && !open.empty(); ++step) {
      const size_t holder = (taker + step) % ranks;
      const RowRuns part = common(open, held[holder]);
      open = without(open, part);
      if (taker == static_cast<size_t>(rank)) exchange.receives[holder] = part;
      if (holder == static_cast<size_t>(rank)) exchange.sends[taker] = part;
    }
  }
  return exchange;
}

std::vector<int64_t> places_of_rows(const RowRuns& wanted, const RowRuns& held) {
  std::vector<int64_t> places;
  int64_t before = 0;  // rows of the runs of `held` that have been passed
  size_t at = 0;
  for (const TokenRange& run : wanted)
    for (int64_t row = run.begin; row < run.end; ++row) {
      while (held.at(at).end <= row) before += held[at++].length();
      ZEA_ASSERT(held[at].begin <= row);
      places.push_back(before + row - held[at].begin);
    }
  return places;
}

}  // namespace zea
