// SPDX-License-Identifier: Apache-2.0
#include "comm/node_memory.hpp"

#include <set>

#include "comm/node/shared_memory.hpp"

namespace zea {
namespace {

std::vector<int> values_of_ranks(const Communicator& ranks, int own) {
  std::vector<int> all(ranks.size());
  check_mpi(MPI_Allgather(&own, 1, MPI_INT, all.data(), 1, MPI_INT, ranks.handle()),
            "MPI_Allgather");
  return all;
}

}  // namespace

NodeMemory NodeMemory::build(const Communicator& world, int64_t bytes, std::optional<int> node) {
  NodeMemory result;
  const Communicator neighbours = world.split(node ? *node : world.lowest_rank_of_node(), "node");
  const auto collectives = make_mpi_collectives(neighbours);
  const auto shared = SharedMemory::build(*collectives, bytes, bytes).memory;
  if (shared) {
    result.ranks_ = values_of_ranks(neighbours, world.rank());
    for (int r = 0; r < neighbours.size(); ++r) result.memory_.push_back(shared->data(r));
    result.own_ = static_cast<size_t>(neighbours.rank());
    result.keeps_ = shared;
  } else {
    const std::shared_ptr<std::byte[]> own(new std::byte[static_cast<size_t>(bytes)]());
    result.ranks_ = {world.rank()};
    result.memory_ = {own.get()};
    result.keeps_ = own;
  }
  const std::vector<int> nodes = values_of_ranks(world, result.ranks_.front());
  const std::set<int> distinct(nodes.begin(), nodes.end());
  result.nodes_.assign(distinct.begin(), distinct.end());
  return result;
}

}  // namespace zea
