// SPDX-License-Identifier: Apache-2.0
// Muon (Keller Jordan, 2024; arXiv:2502.16982), as torch.optim.Muon: the average of gradients with
// Nesterov's step, orthogonalised by Newton and Schulz's iteration. Every matrix is taken whole:
// ranks gather buffers, share out their matrices, and give each other what they have made.
#pragma once

#include <vector>

#include "zea/optim/update.hpp"
#include "zea/parallel/engine.hpp"
#include "zea/plan/buffers/muon_matrices.hpp"

namespace zea {

/// Moves the average towards the gradient that `update` holds, and that towards the average.
void nesterov_update(at::Tensor average, at::Tensor update, double momentum);

/// (a, b): near to U V^T of `matrix` = U S V^T, by five steps of a quintic iteration in `type`.
at::Tensor orthogonalise(const at::Tensor& matrix, at::ScalarType type);

/// What the learning rate of a matrix (rows, columns) is multiplied by.
double muon_scale(MuonRate rate, int64_t rows, int64_t columns);

class Muon {
 public:
  /// `engine` must outlive it. Collective.
  explicit Muon(Engine& engine);

  /// Updates the matrices of the buffers that have a gradient. Collective.
  void step(const std::vector<bool>& buffers_with_gradient, const Update& update);

 private:
  /// A part of a parameter that lies in this rank's shard.
  struct Run {
    int buffer;
    int64_t begin, elements;  ///< in the shard
    int64_t made;             ///< where what replaces it begins in what all ranks make
    ParamRule rule;
  };

  /// Null collectives: alone.
  struct Part {
    MuonPart plan;
    Collectives *shard_group = nullptr, *replicas = nullptr, *pieces = nullptr;
    int rank = 0;  ///< among those that share the work: shard by shard, replica by replica
    std::vector<Run> runs;
  };

  Part make_part(const MuonPart& plan);
  void step_part(const Part& part, const std::vector<bool>& buffers_with_gradient,
                 const Update& update);
  void write_own_updates(const Part& part, int buffer, const at::Tensor& own,
                         const Update& update) const;
  at::Tensor gather(const Part& part, int buffer, const Update& update) const;
  void orthogonalise_into(const at::Tensor& made, const MuonMatrix& matrix,
                          const at::Tensor& pieces) const;
  void share(const Part& part, const at::Tensor& made) const;
  void apply(const Run& run, const at::Tensor& made, const Update& update) const;

  Engine& engine_;
  std::vector<Part> parts_;
};

}  // namespace zea
