// SPDX-License-Identifier: Apache-2.0
// How a mixer that carries a state along the tokens of a sample computes a row whose tokens several
// cp ranks hold: each scans a run of neighboring tokens, and states pass between the ranks. A row
// whose tokens are distributed otherwise (zigzag, in blocks) is redistributed before and after.
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

#include "layout/token_layout.hpp"
#include "layout/visibility.hpp"

namespace zea {

/// Rows that the members of a group exchange: this rank's part.
struct RowMoves {
  std::vector<int64_t> sent;             ///< its rows, in order of the member that takes them
  std::vector<int64_t> sent_counts;      ///< of each member; of itself 0
  std::vector<int64_t> received_counts;  ///< likewise
  /// For each row that it has afterwards: the index among its rows before, followed by the received
  /// ones in order of the member that gave them.
  std::vector<int64_t> order;

  bool operator==(const RowMoves&) const = default;
  int64_t rows_sent() const { return std::ssize(sent); }
  int64_t rows_received() const;
};

/// A cp rank's part of the scan of a row.
struct ScanPlan {
  TokenRange run;               ///< its tokens in the scan
  int64_t halo = 0;             ///< tokens of the same sample before the run that it reads, too
  std::vector<int64_t> bounds;  ///< (samples + 1) of the samples in the run, from 0 on
  /// The ranks before it that hold a part of the sample with which its run begins, and those behind
  /// it that hold a part of the one with which it ends, both in order of nearness: the last of them
  /// holds that sample's begin, or end. Empty: the sample begins, or ends, here.
  std::vector<int> before, after;
  RowMoves inputs;               ///< from its own tokens to the halo and the run
  RowMoves outputs;              ///< from the run to its own tokens
  bool scans_own_tokens = true;  ///< cp ranks own such runs, so outputs stay where they are

  bool operator==(const ScanPlan&) const = default;
  bool continues() const { return !before.empty(); }
  bool goes_on() const { return !after.empty(); }
};

/// Returns the runs that cp ranks scan: the tokens that they own if these are runs in order of
/// rank, else runs of equal length. `owned`: of each rank.
std::vector<TokenRange> scan_runs(const std::vector<TokenRuns>& owned);

/// Returns whether ranks own such runs whatever the row: heads are exchanged or tokens uniform.
bool owns_runs(const DistributionOptions& distribution);

/// Returns the part of `rank` in the scan of a row of `samples`, in which a token reads `taps`
/// tokens, the last of which is itself.
ScanPlan make_scan_plan(const std::vector<Segment>& samples, const std::vector<TokenRuns>& owned,
                        int64_t taps, int rank);

}  // namespace zea
