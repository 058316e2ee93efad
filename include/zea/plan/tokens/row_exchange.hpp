// SPDX-License-Identifier: Apache-2.0
// Activations between two layouts: rows of one global list (features, in the order of their
// placeholders) that ranks hold, and rows that ranks need. Extents of one dim; every row may have
// several holders, of which one provides it, and several takers. All ranks work out the whole
// exchange alike, so no sizes travel.
#pragma once

#include <cstdint>
#include <vector>

#include "zea/plan/tokens/token_distribution.hpp"

namespace zea {

/// Rows of a global list, as ascending runs.
using RowRuns = std::vector<TokenRange>;

/// The number of rows.
int64_t count_rows(const RowRuns& runs);

/// One rank's part: what it sends to and receives from each rank.
struct RowExchange {
  std::vector<RowRuns> sends;
  std::vector<RowRuns> receives;
};

/// `held` and `needed`: of each rank. A row comes from the taker itself where it holds it, else
/// from the first holder after the taker, around. Rows that nobody holds are not sent.
RowExchange plan_row_exchange(const std::vector<RowRuns>& held, const std::vector<RowRuns>& needed,
                              int rank);

/// For each row of `wanted` (ascending, all of them in `held`) its place among the rows of `held`.
std::vector<int64_t> places_of_rows(const RowRuns& wanted, const RowRuns& held);

}  // namespace zea
