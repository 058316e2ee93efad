// SPDX-License-Identifier: Apache-2.0
// What all ranks add up once per step, besides gradients: a step is decided by these sums alone, so
// that all ranks decide the same.
#pragma once

#include <array>

namespace zea {

/// What ranks tell each other: sums over ranks.
struct StepFlags {
  double save = 0;     ///< ranks that were asked to write a checkpoint
  double leave = 0;    ///< ranks that were asked to write a checkpoint and leave
  double writing = 0;  ///< ranks whose file of a checkpoint is still being written
};

struct StepSums {
  double loss = 0, targets = 0;
  double squares = 0;  ///< of the gradient of the loss
  double bad_items = 0;
  StepFlags flags = {};
};

/// As torch.nn.utils.clip_grad_norm_ guards its division.
inline constexpr double kClipEps = 1e-6;

/// As they travel.
using StepSumValues = std::array<double, sizeof(StepSums) / sizeof(double)>;

}  // namespace zea
