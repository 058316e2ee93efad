// SPDX-License-Identifier: Apache-2.0
// Muon (Keller Jordan, 2024; arXiv:2502.16982), as torch.optim.Muon: the average of gradients with
// Nesterov's step, orthogonalised by Newton and Schulz's iteration. Every matrix is taken whole:
// ranks gather the buffer, share out its matrices, and sum what each has made of its own.
#pragma once

#include <vector>

#include "zea/optim/update.hpp"
#include "zea/parallel/engine.hpp"
#include "zea/plan/buffers/muon_matrices.hpp"

namespace zea {

/// Moves the average towards `gradient`, and gives the gradient moved towards that.
at::Tensor nesterov_update(at::Tensor average, const at::Tensor& gradient, double momentum);

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
    int64_t begin, elements;  ///< in the shard
    ParamRule rule;
  };

  struct Part {
    int buffer = 0;
    Collectives *shard_group = nullptr, *replicas = nullptr, *pieces = nullptr;  ///< null: alone
    int rank = 0;  ///< among those that share the work
    std::vector<MuonMatrix> matrices;
    std::vector<Run> runs;
  };

  void add_part(int buffer);
  void step_part(const Part& part, const Update& update);
  at::Tensor own_updates(const Part& part, const Update& update) const;
  at::Tensor gather(const Part& part, at::Tensor own) const;
  at::Tensor orthogonalise_own(const Part& part, const at::Tensor& pieces, int64_t step) const;
  at::Tensor share(const Part& part, at::Tensor made) const;
  void apply(const Part& part, const at::Tensor& made, const Update& update) const;

  Engine& engine_;
  std::vector<Part> parts_;
};

}  // namespace zea
