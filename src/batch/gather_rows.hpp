// SPDX-License-Identifier: Apache-2.0
// What an encoder's blocks made of the items of a microbatch, from the ranks that hold parts of it
// to one of them.
#pragma once

#include <vector>

#include "layout/token_layout.hpp"
#include "model/microbatch.hpp"

namespace zea {

/// Ranks that encode the items of a microbatch together, at one stage.
struct GatheringRanks {
  std::vector<int> in_replica;  ///< their places in the replica
  int rank = 0;                 ///< which of these this one is
  int taker = 0;                ///< which of these gets all rows
};

/// The exchange between `ranks` after which the taker has the rows of all `items` of an encoder,
/// one item after the other.
RowTransfer gather_rows(const ItemList& items, const ModelSpec& model, int encoder,
                        const ReplicaLayout& replica, const GatheringRanks& ranks,
                        at::Device device);

}  // namespace zea
