// SPDX-License-Identifier: Apache-2.0
// Chooses the host collectives of a communicator by the nodes of its ranks.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/mpi_collectives.hpp"
#include "comm/node/node_collectives.hpp"
#include "comm/node/two_level_collectives.hpp"

namespace zea {
namespace {

std::vector<int> nodes_of_ranks(const Communicator& communicator, const NodeOptions& options) {
  const int own = options.node ? *options.node : communicator.lowest_rank_of_node();
  std::vector<int> nodes(communicator.size());
  check_mpi(MPI_Allgather(&own, 1, MPI_INT, nodes.data(), 1, MPI_INT, communicator.handle()),
            "MPI_Allgather");
  return nodes;
}

/// Ranks on each node where all have equally many and a node's are neighbours; else 0.
int even_ranks_per_node(const std::vector<int>& nodes) {
  const int size = static_cast<int>(nodes.size());
  const auto count = std::count(nodes.begin(), nodes.end(), nodes[0]);
  const int per_node = static_cast<int>(count);
  if (size % per_node != 0) return 0;
  for (int r = 0; r < size; ++r) {
    const int first = r / per_node * per_node;
    if (nodes[r] != nodes[first]) return 0;
    if (r == first && std::count(nodes.begin(), nodes.end(), nodes[r]) != count) return 0;
  }
  return per_node;
}

std::unique_ptr<Collectives> over_mpi(const Communicator& communicator, std::string note = {}) {
  return std::make_unique<MpiCollectives>(communicator, std::numeric_limits<int>::max(),
                                          std::move(note));
}

/// Nothing of a node which would have the memory: that without it tells why.
std::string fallback_note(const Communicator& communicator, const std::string& why_not) {
  if (why_not.empty()) return {};
  return "ranks of a node do not meet in shared memory for communicator " + communicator.name() +
         ", so its collectives go over MPI and are slower: " + why_not;
}

}  // namespace

std::unique_ptr<Collectives> make_node_collectives(const Communicator& communicator,
                                                   const NodeOptions& options) {
  if (communicator.size() == 1) return over_mpi(communicator);
  const int per_node = even_ranks_per_node(nodes_of_ranks(communicator, options));
  if (per_node <= 1) return over_mpi(communicator);
  std::string why_not;
  std::unique_ptr<Collectives> made;
  if (per_node == communicator.size())
    made = NodeCollectives::build(
        communicator,
        std::make_shared<SharedBuffers>(communicator.rank(), options.max_shared_bytes),
        options.max_shared_bytes, why_not);
  else
    made = TwoLevelCollectives::build(communicator, per_node, options.max_shared_bytes, why_not);
  return made ? std::move(made) : over_mpi(communicator, fallback_note(communicator, why_not));
}

std::unique_ptr<Collectives> make_host_collectives(const Communicator& communicator) {
  return make_node_collectives(communicator, {});
}

}  // namespace zea
