// SPDX-License-Identifier: Apache-2.0
// Packing blocks of ranks into nodes: the largest blocks first, each whole into a node that has
// room, or else in the parts it consists of (best fit decreasing; Johnson 1974).
#pragma once

#include <vector>

#include "rank_blocks.hpp"

namespace zea::detail {

struct PackingRule {
  BlockLevel whole = BlockLevel::Replica;  ///< the largest blocks that are tried as a whole
  bool beside_kin = true;  ///< near ranks of the same replica before the tightest fit
  /// Neighbouring parts of what no node holds stay together, as many as a node holds.
  bool keeps_runs = true;
};

/// The node of each rank. `room`: ranks that each node takes, in all as many as there are.
std::vector<int> pack_ranks(const RankBlocks& blocks, const std::vector<int>& room,
                            const PackingRule& rule);

}  // namespace zea::detail
