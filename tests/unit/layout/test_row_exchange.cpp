// SPDX-License-Identifier: Apache-2.0
// Exchanges of rows between random layouts, against sets of rows: every rank gets the rows that it
// needs once, each message has the expected rows, and local rows are not sent.
#include "layout/token_layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace zea::test_row_exchange {
namespace {

using Rows = std::set<int64_t>;

Rows rows_of(const TokenRuns& runs) {
  Rows rows;
  int64_t last = -1;
  for (const TokenRange& run : runs) {
    EXPECT_GE(run.begin, last) << "runs are ascending";
    EXPECT_GT(run.end, run.begin) << "and none is empty";
    last = run.end;
    for (int64_t row = run.begin; row < run.end; ++row) rows.insert(row);
  }
  return rows;
}

/// Runs of any lengths, some of them adjacent.
TokenRuns random_runs(std::mt19937_64& random, int64_t rows) {
  TokenRuns runs;
  if (random() % 6 == 0) return runs;
  for (int64_t at = static_cast<int64_t>(random() % 4); at < rows;) {
    const int64_t end = std::min(rows, at + 1 + static_cast<int64_t>(random() % 6));
    runs.push_back({at, end});
    at = end + static_cast<int64_t>(random() % 4);
  }
  return runs;
}

struct Layouts {
  std::vector<TokenRuns> held, needed;
};

Layouts random_layouts(std::mt19937_64& random) {
  Layouts layouts;
  const int ranks = 1 + static_cast<int>(random() % 5);
  const auto rows = static_cast<int64_t>(random() % 40);
  for (int rank = 0; rank < ranks; ++rank) {
    layouts.held.push_back(random_runs(random, rows));
    layouts.needed.push_back(random_runs(random, rows));
  }
  return layouts;
}

/// The rank that provides a row: the taker itself, else the first after it, around; -1: nobody.
int provider(const std::vector<Rows>& held, int taker, int64_t row) {
  const int ranks = static_cast<int>(held.size());
  for (int step = 0; step < ranks; ++step)
    if (held[(taker + step) % ranks].count(row)) return (taker + step) % ranks;
  return -1;
}

TEST(RowExchange, GivesEveryTakerEachRowOnceFromItsNearestHolder) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 500; ++round) {
    const Layouts layouts = random_layouts(random);
    const int ranks = static_cast<int>(layouts.held.size());
    std::vector<Rows> held;
    for (const TokenRuns& runs : layouts.held) held.push_back(rows_of(runs));
    std::vector<RowExchange> parts;
    for (int rank = 0; rank < ranks; ++rank)
      parts.push_back(plan_row_exchange(layouts.held, layouts.needed, rank));
    for (int taker = 0; taker < ranks; ++taker) {
      std::vector<Rows> expected(ranks);
      for (int64_t row : rows_of(layouts.needed[taker]))
        if (const int holder = provider(held, taker, row); holder >= 0)
          expected[holder].insert(row);
      for (int holder = 0; holder < ranks; ++holder) {
        ASSERT_EQ(rows_of(parts[taker].receives[holder]), expected[holder]);
        ASSERT_EQ(parts[holder].sends[taker], parts[taker].receives[holder]);
      }
    }
  }
}

TEST(RowExchange, GivesEveryTakerEachPartOfARowOnce) {
  std::mt19937_64 random(13);
  for (int round = 0; round < 500; ++round) {
    const Layouts layouts = random_layouts(random);
    const int ranks = static_cast<int>(layouts.held.size());
    std::vector<int> parts;
    for (int rank = 0; rank < ranks; ++rank) parts.push_back(static_cast<int>(random() % 3));
    for (int taker = 0; taker < ranks; ++taker) {
      const RowExchange got = plan_row_exchange(layouts.held, layouts.needed, taker, parts);
      std::vector<Rows> expected(ranks);
      for (int part = 0; part < 3; ++part) {
        std::vector<Rows> held;
        for (int rank = 0; rank < ranks; ++rank)
          held.push_back(parts[rank] == part ? rows_of(layouts.held[rank]) : Rows());
        for (int64_t row : rows_of(layouts.needed[taker]))
          if (const int holder = provider(held, taker, row); holder >= 0)
            expected[holder].insert(row);
      }
      for (int holder = 0; holder < ranks; ++holder) {
        ASSERT_EQ(rows_of(got.receives[holder]), expected[holder]);
        ASSERT_EQ(plan_row_exchange(layouts.held, layouts.needed, holder, parts).sends[taker],
                  got.receives[holder]);
      }
    }
  }
}

TEST(RowExchange, FindsThePlacesOfRowsAmongTheHeld) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 500; ++round) {
    const TokenRuns held = random_runs(random, 40);
    const Rows all = rows_of(held);
    std::vector<int64_t> order(all.begin(), all.end());
    // Some of them, as runs of any lengths.
    TokenRuns wanted;
    std::vector<int64_t> expected;
    for (size_t i = 0; i < order.size(); ++i) {
      if (random() % 3 == 0) continue;
      const bool joins = !wanted.empty() && wanted.back().end == order[i] && random() % 2 == 0;
      if (joins)
        ++wanted.back().end;
      else
        wanted.push_back({order[i], order[i] + 1});
      expected.push_back(static_cast<int64_t>(i));
    }
    ASSERT_EQ(indices_of_rows(wanted, held), expected);
    ASSERT_EQ(count_tokens(wanted), static_cast<int64_t>(expected.size()));
  }
}

}  // namespace
}  // namespace zea::test_row_exchange
