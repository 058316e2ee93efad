// SPDX-License-Identifier: Apache-2.0
#include "schedule/graphs.hpp"

#include <algorithm>

namespace zea::detail {
namespace {

/// Of ranks that are not all, several communicators would be in one graph.
bool is_of_some_ranks(const Sharding& sharding, int world_size) {
  const auto is_some = [&](int ranks) { return ranks > 1 && ranks < world_size; };
  return is_some(sharding.shards) || is_some(sharding.replicas) || sharding.subgroup > 0;
}

}  // namespace

void check_graphs(Faults& faults, const GraphedRun& run) {
  const int64_t shapes = run.options.run.cuda_graphs;
  if (shapes == 0) return;
  const std::string found = "run.cuda_graphs = " + std::to_string(shapes);
  const int ranks = run.mesh.ranks_per_replica(), all = run.mesh.world_size();
  if (ranks > 1)
    faults.add(found + " with " + std::to_string(ranks) +
               " ranks that share microbatches: graphs are built for tp = 1, cp = 1, pp = 1 and "
               "modules that share their ranks; use these, or leave it out");
  else if (std::ranges::any_of(run.shardings,
                               [&](const Sharding& one) { return is_of_some_ranks(one, all); }))
    faults.add(found +
               " with modules that are sharded over some ranks and summed over others: a graph "
               "holds the calls of one communicator; use strategy = \"full_shard\", "
               "\"shard_grad_op\" or \"no_shard\", or leave it out");
  if (std::ranges::any_of(run.shardings, &Sharding::offloads))
    faults.add(found +
               " with cpu_offload = true: the host waits for copies within a step, which no graph "
               "holds; leave one of them out");
  if (run.options.data.bad_items == BadItems::Mask)
    faults.add(found +
               " with data.bad_items = \"mask\": what is masked changes the shape of a step on one "
               "rank alone; use \"stop\", or leave it out");
  if (run.images_both_ways)
    faults.add(found + " with a language model (" + run.model.family +
               ") in which images see all of themselves: where they stand in a row is not known "
               "from its shape; set model." +
               kDecoder +
               ".image_attention = \"causal\" if that is meant, or "
               "leave it out");
}

}  // namespace zea::detail
