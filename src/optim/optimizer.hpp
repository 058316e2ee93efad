// SPDX-License-Identifier: Apache-2.0
// The plan's optimizer over the shards that a rank owns. Gradients arrive as sums; 1/N and clipping
// are folded into the update.
#pragma once

#include <optional>
#include <vector>

#include "optim/muon.hpp"
#include "optim/update.hpp"
#include "parallel/engine.hpp"

namespace zea {

class Optimizer {
 public:
  explicit Optimizer(Engine& engine);

  /// Returns this rank's part of the sum of squares of the gradient for update `update`, counted
  /// from 1. Each element is counted by one rank, frozen parameters by none.
  double own_sum_of_squares(int64_t update) const;

  /// The same in parts, where the gradients are (chunk_squares()): does not wait for the device.
  at::Tensor own_squares(int64_t update) const;

  /// Updates the buffers that have a gradient in this step; the plan's rules give each
  /// parameter its factor of `update.lr` and its weight decay, and the updates it is frozen for:
  /// its own count of steps begins after the first of them.
  void step(const std::vector<bool>& buffers_with_gradient, Update update);

  /// Whether update `update` is the first of parameters that were frozen until then, or the first
  /// that leaves some as they are, on any rank.
  bool trains_others_at(int64_t update) const;

  /// The first buffer of this rank whose gradient is not finite; -1 when all are.
  int non_finite_buffer() const;
  /// The same by what own_squares(update) gave.
  int non_finite_buffer(const at::Tensor& squares, int64_t update) const;

 private:
  /// A range of a shard, or of an optimizer state of it.
  struct Run {
    int64_t begin, elements;

    at::Tensor of(const at::Tensor& flat) const { return flat.narrow(0, begin, elements); }
  };

  /// A run of a shard whose parameters have the same rule.
  struct Cut {
    int buffer;
    Run run;
    ParamRule rule;
    std::vector<Run> states;  ///< as OptimizerSpec lists them
  };

  /// A run of a shard that this rank counts in the norm.
  struct Counted {
    int buffer;
    int64_t begin, elements;  ///< a range of the shard
    ParamRule rule;           ///< which says when it is counted
  };

  void add_cuts(int buffer);
  void add_counted(int buffer);
  std::vector<at::Tensor> counted_gradients(int64_t update) const;

  Engine& engine_;
  UpdateFunction update_;     ///< updates all but Muon's matrices
  std::optional<Muon> muon_;  ///< updates these, if the plan's optimizer is Muon
  std::vector<Cut> cuts_;
  std::vector<Counted> counted_;
};

}  // namespace zea
