// SPDX-License-Identifier: Apache-2.0
// Sums the gradients of replicated parameters over the ranks that hold them: several tp ranks
// (norms, row biases, replicated KV heads) or several stages (tied embeddings). Ranks of a tp
// group, or of one coordinate at several stages, own the same range of a flat buffer, so their
// owned gradients match.
#pragma once

#include <memory>
#include <vector>

#include "comm/mesh.hpp"
#include "parallel/sharded_buffer.hpp"
#include "schedule/replicated_ranges.hpp"

namespace zea {

class ReplicatedGradSync {
 public:
  /// `mesh` and `buffers`, the buffers of `plan`, must outlive it. Does not communicate.
  ReplicatedGradSync(const Plan& plan, Mesh& mesh,
                     const std::vector<std::unique_ptr<ShardedBuffer>>& buffers, at::Device device);

  /// Sums the owned gradients of the buffers for which some rank of the job has a gradient, after a
  /// step's reductions, before norm and update. Makes one all-reduce in the master type for each
  /// replication group, in place if ReplicatedRanges says so. Collective.
  void run(const std::vector<bool>& buffers_with_gradient);

 private:
  struct Sum {
    Collectives* holders;
    ReplicatedRanges held;
    at::Tensor packed;  ///< while it is under way
    Pending pending;
  };

  at::Tensor gradient_of(const ReplicatedRange& range) const;
  void start(Sum& sum, const std::vector<bool>& buffers_with_gradient);
  void finish(Sum& sum, const std::vector<bool>& buffers_with_gradient);

  const std::vector<std::unique_ptr<ShardedBuffer>>& buffers_;
  DType dtype_;
  at::Device device_;
  std::vector<Sum> sums_;  ///< the order is the same on all ranks
};

}  // namespace zea
