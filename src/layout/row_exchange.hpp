// SPDX-License-Identifier: Apache-2.0
// Activations between two layouts: rows of one global list (features, in the order of their
// placeholders) that ranks hold, and rows that ranks need. Extents of one dim; every row may have
// several holders, of which one provides it, and several takers. All ranks work out the whole
// exchange alike, so no sizes travel.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/token_distribution.hpp"

namespace zea {

/// Tokens of a row, or features in the order of their placeholders, as ascending runs.
using TokenRuns = std::vector<TokenRange>;

/// How many these are.
int64_t count_tokens(const TokenRuns& runs);
/// Each of them.
std::vector<int64_t> numbers_of(const TokenRuns& runs);

/// One rank's part: what it sends to and receives from each rank.
struct RowExchange {
  std::vector<TokenRuns> sends;
  std::vector<TokenRuns> receives;
};

/// `held` and `needed`: of each rank. A row comes from the taker itself where it holds it, else
/// from the first holder after the taker, around. Rows that nobody holds are not sent. With `parts`
/// a row is a sum: of each rank which part of the rows that it holds is there, so that a taker gets
/// each part once; empty: all are whole.
RowExchange plan_row_exchange(const std::vector<TokenRuns>& held,
                              const std::vector<TokenRuns>& needed, int rank,
                              const std::vector<int>& parts = {});

/// For each row of `wanted` (ascending, all of them in `held`) its index among the rows of `held`.
std::vector<int64_t> indices_of_rows(const TokenRuns& wanted, const TokenRuns& held);

}  // namespace zea
