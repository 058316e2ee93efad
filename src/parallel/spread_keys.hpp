// SPDX-License-Identifier: Apache-2.0
// Few queries to keys that are spread over cp ranks: decoding, whose keys would take longer to
// travel than the queries and what these get.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "comm/collectives.hpp"
#include "model/slice_attention.hpp"

namespace zea::detail {

/// The queries of all cp ranks on each of them. All calls but own() are collective over both groups
/// (null: a group of one).
class SpreadQueries {
 public:
  /// `cp_tokens`: queries of each cp rank, of which rank r is member r % inner of inner group
  /// r / inner.
  SpreadQueries(const std::vector<int64_t>& cp_tokens, Collectives* inner, Collectives* outer);

  /// q (queries of this rank, heads, head_dim) -> those of all ranks, in their order.
  at::Tensor gather(const at::Tensor& q) const;
  /// What each rank's queries get from all ranks' keys, given what they get from the own ones:
  /// (queries of all ranks, heads, head_dim).
  at::Tensor merged(const AttentionSums& sums) const;
  /// The rows of this rank's queries.
  at::Tensor own(const at::Tensor& x) const;

 private:
  std::vector<int64_t> inner_tokens_;  ///< of the own inner group's members
  std::vector<int64_t> outer_tokens_;  ///< of all inner groups
  int64_t first_ = 0;                  ///< of this rank's queries
  int64_t count_ = 0;
  Collectives* inner_;
  Collectives* outer_;
};

}  // namespace zea::detail
