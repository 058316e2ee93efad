// SPDX-License-Identifier: Apache-2.0
// Muon (Keller Jordan, 2024; arXiv:2502.16982), as torch.optim.Muon: the average of gradients with
// Nesterov's step, orthogonalized by Newton and Schulz's iteration. One of the ranks that have a
// copy of a matrix takes the whole of it: ranks send each other the parts in their shards, and send
// the results back.
#pragma once

#include <vector>

#include "optim/update.hpp"
#include "parallel/engine.hpp"
#include "schedule/muon_work.hpp"

namespace zea {

/// `matrix` (a, b) = U S V^T, its rows dense, becomes near to scale U V^T, by five steps of a
/// quintic iteration in `type`.
void orthogonalize(const at::Tensor& matrix, at::ScalarType type, double scale);

/// Returns the factor of the learning rate for a matrix (rows, columns).
double muon_scale(MuonRate rate, int64_t rows, int64_t columns);

class Muon {
 public:
  /// `engine` must outlive it. Collective.
  explicit Muon(Engine& engine);

  /// Updates the matrices of the buffers that have a gradient. Collective.
  void step(const std::vector<bool>& buffers_with_gradient, const Update& update);

 private:
  /// Null collectives: alone.
  struct Part {
    MuonPart plan;
    MuonShare share;
    Collectives *shard_group = nullptr, *replicas = nullptr, *pieces = nullptr;
  };

  /// The parameters of a part that are updated in this step.
  struct Due {
    const std::vector<ParamRule>& rules;
    const std::vector<bool>& buffers_with_gradient;
    int64_t step;
    bool is(int buffer, int param) const;
    bool is(const MuonMatrix& matrix) const;
  };

  /// The orthogonalized runs of a part, one after the other; some of them may still come from other
  /// ranks while the next part is made.
  struct Moved {
    const Part* part;
    at::Tensor runs, others;  ///< `others`: sent from here
    Pending arriving;
  };

  Part make_part(MuonWork work);
  Moved move_part(const Part& part, const Due& due, const Update& update) const;
  at::Tensor updates_of(const Part& part, const Due& due, const Update& update) const;
  void for_each_run(const Part& part, const Due& due, const auto& visit) const;
  void orthogonalize_joined(Moved& moved, const at::Tensor& section, const Due& due) const;
  void orthogonalize_made(const Part& part, const at::Tensor& section, const at::Tensor& joined,
                          const Due& due) const;
  at::Tensor gathered(const Part& part, const at::Tensor& own) const;
  void orthogonalize_in(const at::Tensor& own, const at::Tensor& pieces,
                        const MuonMatrix& matrix) const;
  void apply(Moved& moved, const Due& due, const Update& update) const;
  at::TensorOptions options() const;

  Engine& engine_;
  std::vector<Part> parts_;
};

}  // namespace zea
