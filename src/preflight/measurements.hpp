// SPDX-License-Identifier: Apache-2.0
// The measurements of zea --check-node, as plain values, rank by rank and node by node. Nothing is
// judged here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/visible_gpus.hpp"

namespace zea {

/// Facts that one rank measures alone. Sizes are -1 where the system does not know them; the facts
/// of a node are those of its first rank.
struct RankFacts {
  int node = 0;      ///< the lowest rank of its node
  std::string name;  ///< of the node, as Slurm's --exclude takes it

  std::string zea, build;  ///< version, and a hash of the program
  std::string libtorch, mpi, kernel, processor;

  std::vector<int> cores;                      ///< allowed for this rank
  int threads = 1;                             ///< of its computation
  int64_t open_files = -1, locked_bytes = -1;  ///< limits; -1: none

  int64_t memory_free_bytes = -1, memory_bytes = -1;  ///< for this job
  int64_t shared_bytes = -1, shared_free_bytes = -1;  ///< of /dev/shm
  std::string disk_fault;                             ///< empty: the directory can be written
  int64_t disk_free_bytes = -1;
  double disk_rate = 0;  ///< bytes a second, written and synced; 0: not measured

  std::string gpu_fault;  ///< why this rank has no GPU; empty: it has one, or uses none
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
  std::string directory{};          ///< the one that was written to
  std::vector<RankFacts> ranks{};   ///< in their order
  std::vector<int> nodes{};         ///< the lowest rank of each, ascending
  std::vector<NodeClock> clocks{};  ///< of each node
  std::vector<LinkRate> inside{};   ///< of each node
  std::vector<LinkRate> pairs{};    ///< neighbouring nodes
  LinkRate everyone{};              ///< all ranks
};

/// Returns the pairs of neighbors in a ring of nodes, in rounds in which a node is in one pair at
/// most.
std::vector<std::vector<std::pair<int, int>>> pair_rounds(int nodes);

/// The size of a tensor that GPUs sum, and the room for some of these and for NCCL.
inline constexpr int64_t kSummedGpuBytes = int64_t{256} << 20;
inline constexpr int64_t kLeastGpuRoomBytes = 8 * kSummedGpuBytes;

struct NodeView {
  std::vector<const RankFacts*> ranks;  ///< never empty
  const RankFacts& first() const { return *ranks.front(); }
  const std::string& name() const { return first().name; }
};
std::vector<NodeView> views_of(const Measurements& measured);

/// Returns whether somebody else holds more of a GPU's memory than CUDA itself or a desktop takes.
bool is_gpu_taken(const RankFacts& rank);
/// Returns whether sums between GPUs can be measured: every rank needs one with room, as the others
/// would wait for a rank without.
bool can_sum_on_gpus(const std::vector<RankFacts>& ranks);

/// Returns the median of the values above 0; 0 without any.
double median_of(std::vector<double> values);

/// Returns for every node the rate among its ranks; 0: one rank alone.
std::vector<double> rates_inside(const Measurements& measured);
/// Returns for every node the best rate of the pairs that it is in: a node that is slow in all of
/// them is slow itself. 0 on a job of one node.
std::vector<double> rates_across(const Measurements& measured);

/// "12.3 GiB"; "?" of a negative number.
std::string gib_text(int64_t bytes);
/// "21.4 GB/s"; "-" of 0.
std::string rate_text(double rate);
/// "12.30".
std::string decimal_text(double value);

}  // namespace zea
