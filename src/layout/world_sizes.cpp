// SPDX-License-Identifier: Apache-2.0
#include "layout/world_sizes.hpp"

namespace zea {

std::vector<int64_t> fitting_world_sizes(int64_t replica_ranks, int64_t dp_replicate,
                                         int64_t dp_shard, int64_t world_size) {
  const bool is_free = dp_replicate == -1 || dp_shard == -1;
  int64_t step = replica_ranks;
  for (const int64_t degree : {dp_replicate, dp_shard})
    if (degree != -1) step *= degree;
  if (!is_free || world_size <= step) return {step};
  const int64_t below = world_size / step * step;
  if (below == world_size) return {below};
  return {below, below + step};
}

std::string nearest_world_sizes(int64_t replica_ranks, int64_t dp_replicate, int64_t dp_shard,
                                int64_t world_size) {
  const std::vector<int64_t> sizes =
      fitting_world_sizes(replica_ranks, dp_replicate, dp_shard, world_size);
  if (sizes.size() == 2)
    return "the nearest world sizes that fit are " + std::to_string(sizes[0]) + " and " +
           std::to_string(sizes[1]);
  const bool is_free = dp_replicate == -1 || dp_shard == -1;
  return std::string(is_free ? "the nearest world size that fits is "
                             : "the only world size that fits is ") +
         std::to_string(sizes[0]);
}

}  // namespace zea
