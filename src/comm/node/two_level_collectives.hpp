// SPDX-License-Identifier: Apache-2.0
// Collectives over several nodes with equally many ranks each: shared memory inside a node, and MPI
// between the ranks with the same index in their nodes, so that each rank sends 1 / ranks-per-node
// of the bytes.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/node/node_collectives.hpp"

namespace zea {

class TwoLevelCollectives : public Collectives {
 public:
  /// Ranks of a node are neighbors, `ranks_per_node` of them on every node. Returns null if shared
  /// memory is not available on every node, with the reason in `why_not` on those without.
  /// Collective.
  static std::unique_ptr<TwoLevelCollectives> build(const Communicator& communicator,
                                                    int ranks_per_node, int64_t max_shared_bytes,
                                                    std::string& why_not);

  int rank() const override { return mpi_->rank(); }
  int size() const override { return mpi_->size(); }
  const char* name() const override { return "two-level"; }
  std::string note() const override { return into_node_->note(); }

  Pending start(const CollectiveCall& call) override;
  std::shared_ptr<void> allocate(int64_t bytes) override { return into_node_->allocate(bytes); }

 private:
  struct Parts {
    std::unique_ptr<Collectives> mpi;
    std::unique_ptr<NodeCollectives> into_node;
    std::unique_ptr<Collectives> between_nodes;
    std::unique_ptr<NodeCollectives> out_of_node;
  };

  /// A call consists of stages, each a few communications that start when those of the stage before
  /// are complete.
  static constexpr int kNumStages = 3;
  using Stages = std::array<std::function<std::vector<Pending>()>, kNumStages>;
  /// Stages start in the order of the calls, so that every rank makes the calls of a stage in the
  /// same order however long the stages take.
  struct Order {
    uint64_t issued = 0;
    std::array<uint64_t, kNumStages> started{};
  };
  class StagedWork;

  TwoLevelCollectives(std::shared_ptr<Progress> progress, Parts parts);
  int rank_in_node() const { return into_node_->rank(); }
  int ranks_per_node() const { return into_node_->size(); }
  int first_rank(int node) const { return node * ranks_per_node(); }
  int num_nodes() const { return between_nodes_->size(); }
  Counts counts_on_node(const Counts& counts, int node) const;
  Counts counts_across_nodes(const Counts& counts) const;
  Stages all_reduce_stages(const CollectiveCall& call);
  Stages reduce_scatter_stages(const CollectiveCall& call);
  Stages all_gather_stages(const CollectiveCall& call);

  std::shared_ptr<Progress> progress_;
  std::unique_ptr<Collectives> mpi_;
  std::unique_ptr<NodeCollectives> into_node_;  ///< first and last stages apart: those of
  std::unique_ptr<Collectives> between_nodes_;  ///< several calls overlap, each in its own order
  std::unique_ptr<NodeCollectives> out_of_node_;
  std::shared_ptr<Order> order_ = std::make_shared<Order>();
};

}  // namespace zea
