// SPDX-License-Identifier: Apache-2.0
// Dispatch of tokens to the ranks of their experts by all-to-all. A token goes once to each rank
// that has experts which it chose, whatever their number, and returns as the sum of these experts'
// outputs. So no token is dropped, and an all-gather's rows that no expert of a rank reads are not
// sent.
//
// How many rows each rank receives depends on routing. Ranks exchange these counts first, and the
// host waits for them: the one exception from planned sizes, once per mixture, forward and axis of
// ranks. Backward and the way back use the same counts. Recomputed forwards exchange them again.
// Every rank calls every exchange, also one without tokens, so none waits for another forever.
//
// If experts are shared along cp and along dp_shard, tokens go along cp first, then along dp_shard:
// a token crosses replicas once for each of them, and neither step needs further communicators.
#pragma once

#include <vector>

#include "comm/collectives.hpp"
#include "model/layers.hpp"

namespace zea::detail {

/// The way of this rank's tokens to the ranks of one group, and back.
struct ExpertDispatch {
  Collectives* ranks;
  at::Tensor places;      ///< (tokens, ranks) int64: the row of a token among those sent; -1: none
  at::Tensor tokens;      ///< (rows sent) int64: their tokens, ordered by rank
  Counts sent, received;  ///< rows to and from each rank
};

/// `members` (tokens, chosen) int64: the rank of the group that has an expert; the group's size
/// where none has it. The host waits for the counts of all ranks. Collective.
ExpertDispatch make_dispatch(Collectives& ranks, const at::Tensor& members);

/// x (tokens, width) -> (rows received, width). Collective, as its backward is.
at::Tensor sent_along(const ExpertDispatch& way, const at::Tensor& x);
/// x (rows received, width) -> (tokens, width), summed over ranks, in fp32 or wider. Collective, as
/// its backward is.
at::Tensor returned_along(const ExpertDispatch& way, const at::Tensor& x);

}  // namespace zea::detail

namespace zea {

/// The ways along cp and along dp_shard, in the order in which tokens go.
struct ExpertDispatches {
  std::vector<detail::ExpertDispatch> along;
};

}  // namespace zea
