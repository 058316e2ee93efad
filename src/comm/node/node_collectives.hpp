// SPDX-License-Identifier: Apache-2.0
// Collectives of ranks that share a node: reductions and gathers use shared memory; messages
// between two ranks, and rare collectives, use MPI.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.hpp"
#include "comm/node/node_work.hpp"

namespace zea {

class NodeCollectives : public Collectives {
 public:
  /// Returns null if any rank cannot get the shared memory, with the reason in `why_not`, equal on
  /// all ranks. Collective. `buffers` may be shared by several of one communicator.
  static std::unique_ptr<NodeCollectives> build(const Communicator& communicator,
                                                std::shared_ptr<SharedBuffers> buffers,
                                                int64_t max_shared_bytes, std::string& why_not);

  int rank() const override { return mpi_->rank(); }
  int size() const override { return mpi_->size(); }
  const char* name() const override { return "node"; }
  std::string note() const override;

  Pending start(const CollectiveCall& call) override;
  std::shared_ptr<void> allocate(int64_t bytes) override;
  /// Options of a reduction to one range for each rank.
  struct Manner {
    ReduceOp op = ReduceOp::Sum;
    bool keeps_wide = false;  ///< `receive` gets the sums of bf16 or fp16 as fp32
  };
  /// A reduce_scatter whose `receive` may be this rank's cut of `send`.
  Pending reduce_to_cuts(const void* send, void* receive, const Counts& counts, DType dtype,
                         Manner manner);

 private:
  NodeCollectives(std::shared_ptr<Progress> progress, std::unique_ptr<Collectives> mpi,
                  std::shared_ptr<NodeBoard> board, std::shared_ptr<SharedBuffers> buffers);
  NodeCall all_gather_of(const CollectiveCall& call) const;
  Pending meet(NodeCall call);

  std::shared_ptr<Progress> progress_;
  std::unique_ptr<Collectives> mpi_;
  std::shared_ptr<NodeBoard> board_;
  std::shared_ptr<SharedBuffers> buffers_;
};

}  // namespace zea
