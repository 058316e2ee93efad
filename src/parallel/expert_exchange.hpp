// SPDX-License-Identifier: Apache-2.0
// Dispatch of tokens to the ranks of their experts by all-to-all. A token is sent once to each rank
// that holds at least one of its experts, and returns as the sum of these experts' outputs. No
// token is dropped, and, unlike with an all-gather, no rank receives rows that its experts do not
// read.
//
// The number of rows that a rank receives depends on routing. Ranks exchange these counts first,
// and the host waits for them, once per mixture, forward and axis of ranks. All other messages have
// planned sizes. Backward and the return use the same counts; a recomputed forward exchanges them
// again. Every rank calls every exchange, even if it has no tokens, so that no rank waits forever.
//
// If experts are shared along cp and along dp_shard, tokens are sent along cp first, then along
// dp_shard. So a token is sent once to each rank of another replica that holds its experts, and
// neither step needs further communicators.
#pragma once

#include <vector>

#include "comm/collectives.hpp"
#include "model/layers.hpp"

namespace zea::detail {

/// This rank's tokens for each rank of a group, and the rows that arrive from each.
struct ExpertDispatch {
  Collectives* ranks;
  at::Tensor places;      ///< (tokens, ranks) int64: index among the rows sent; -1: not sent there
  at::Tensor tokens;      ///< (rows sent) int64: the token of each row, ordered by rank
  Counts sent, received;  ///< rows to and from each rank
};

/// `members` (tokens, chosen) int64: the rank of the group that holds each chosen expert, or the
/// group's size if no rank of it does. The host waits for the counts of all ranks. Collective.
ExpertDispatch make_dispatch(Collectives& ranks, const at::Tensor& members);

/// Dispatches x (tokens, width) -> (rows received, width). Collective, as its backward is.
at::Tensor sent_along(const ExpertDispatch& way, const at::Tensor& x);
/// Combines x (rows received, width) -> (tokens, width), summed over ranks in fp32 or wider.
/// Collective, as its backward is.
at::Tensor returned_along(const ExpertDispatch& way, const at::Tensor& x);

}  // namespace zea::detail

namespace zea {

/// The dispatches along cp and along dp_shard, in the order in which tokens are sent.
struct ExpertDispatches {
  std::vector<detail::ExpertDispatch> along;
};

}  // namespace zea
