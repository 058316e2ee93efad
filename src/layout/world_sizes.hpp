// SPDX-License-Identifier: Apache-2.0
// Which numbers of ranks a mesh can have: a replica's ranks times the data-parallel degrees, of
// which one may take what is left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zea {

/// The world sizes nearest to `world_size` that hold whole replicas of `replica_ranks`, ascending:
/// the largest below and the smallest above it, or `world_size` alone where it fits. A degree of -1
/// is free; the others are 1 or more.
std::vector<int64_t> fitting_world_sizes(int64_t replica_ranks, int64_t dp_replicate,
                                         int64_t dp_shard, int64_t world_size);

/// The same as a clause: "the nearest world sizes that fit are 11 and 22".
std::string nearest_world_sizes(int64_t replica_ranks, int64_t dp_replicate, int64_t dp_shard,
                                int64_t world_size);

}  // namespace zea
