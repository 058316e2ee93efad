// SPDX-License-Identifier: Apache-2.0
// The owner of MPI: initializes it first and finalizes it last. Only main makes one; everything
// below receives a communicator.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace zea {

class World {
 public:
  /// Initializes MPI (funneled). Before that, unless the user has, it sets that waiting ranks yield
  /// their core and that NCCL launches in the order of the calls.
  World(int* argc, char*** argv);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  /// Finalizes MPI, unless an exception unwinds: that would wait for the other ranks.
  ~World();

  int rank() const { return world_->rank(); }
  int size() const { return world_->size(); }
  /// This rank's index among the ranks of its node, which chooses the device.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  /// The node of each rank, named by the lowest rank on it.
  const std::vector<int>& node_of_rank() const { return node_of_rank_; }

  /// A duplicate of all ranks. Collective.
  Communicator communicator() const { return world_->duplicate("world"); }

  /// Whether every rank arrives here within `seconds`, which distinguishes a failure of all ranks
  /// from that of one.
  bool barrier_within(double seconds) const;

  /// Ends all ranks of the job with this exit code.
  void abort(int code) const;

 private:
  std::optional<Communicator> world_;
  int local_rank_ = 0;
  int local_size_ = 1;
  std::vector<int> node_of_rank_;
};

/// Returns the name of the MPI library; also before it is started.
std::string mpi_library();

}  // namespace zea
