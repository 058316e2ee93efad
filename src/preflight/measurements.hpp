// SPDX-License-Identifier: Apache-2.0
// What zea --check-node finds out about the nodes of a job, as plain values. Nothing is judged
// here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/visible_gpus.hpp"

namespace zea {

/// What one rank finds out alone. Sizes are -1 where the system does not tell; fields of the node
/// are those of its first rank.
struct RankFacts {
  int node = 0;      ///< the lowest rank of its node
  std::string name;  ///< of the node, as Slurm's --exclude wants it

  std::string zea, build;  ///< version, and a hash of the program
  std::string libtorch, mpi, kernel, processor;

  std::vector<int> cores;                      ///< that this rank may use
  int threads = 1;                             ///< that it computes with
  int64_t open_files = -1, locked_bytes = -1;  ///< limits; -1: none

  int64_t memory_free_bytes = -1, memory_bytes = -1;  ///< that this job may take, of what
  int64_t shared_bytes = -1, shared_free_bytes = -1;  ///< of /dev/shm
  std::string disk_fault;                             ///< empty: the directory can be written
  int64_t disk_free_bytes = -1;
  double disk_rate = 0;  ///< bytes a second, written and synced; 0: not measured

  std::string gpu_fault;  ///< why this rank has no GPU; empty: it has one, or is to use none
  std::string gpu_id, gpu_name;
  int visible_gpus = 0;
  int64_t gpu_free_bytes = -1, gpu_bytes = -1;
  PciLink gpu_link{};
  int nccl = 0, built_nccl = 0, cuda_runtime = 0, built_cuda = 0, cuda_driver = 0;
};

/// A node's clock, as seen from that of rank 0's node.
struct NodeClock {
  double ahead_seconds = 0;
  double bound_seconds = 0;  ///< the true value is at most that far away
};

/// An all-reduce among all ranks of some nodes.
struct LinkRate {
  std::vector<int> nodes{};  ///< as indices
  double rate = 0;           ///< bytes a second through each rank's link; 0: one rank alone
  bool is_right = true;      ///< whether every rank got the sum
};

struct Measurements {
  bool on_gpus = false;             ///< asked for
  bool links_on_gpus = false;       ///< whether links were measured between GPUs
  std::string directory{};          ///< that was written
  std::vector<RankFacts> ranks{};   ///< in their order
  std::vector<int> nodes{};         ///< the lowest rank of each, ascending
  std::vector<NodeClock> clocks{};  ///< of each node
  std::vector<LinkRate> inside{};   ///< of each node
  std::vector<LinkRate> pairs{};    ///< neighbouring nodes
  LinkRate everyone{};              ///< all ranks
};

/// Neighbours in a ring of nodes, in rounds in which a node is in one pair at most.
std::vector<std::vector<std::pair<int, int>>> pair_rounds(int nodes);

}  // namespace zea
