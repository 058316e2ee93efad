// SPDX-License-Identifier: Apache-2.0
// The numbers that all ranks sum once per step besides gradients. A step is decided by these sums
// alone, so that all ranks decide the same.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <array>
#include <cstddef>

#include "comm/collectives.hpp"

namespace zea {

/// Sums over ranks.
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

/// Guards the division by the norm, as torch.nn.utils.clip_grad_norm_ does.
inline constexpr double kClipEps = 1e-6;

/// The message of the all-reduce.
using StepSumValues = std::array<double, sizeof(StepSums) / sizeof(double)>;

/// The end of a step on a device, which sums and judges by itself, so that the update can be
/// launched without the host. The host reads sums and seconds when it likes. The seconds lie
/// between two events of the device's stream; the first is recorded when the step begins on the
/// host. Where the device is behind, the first event is reached when the step before is done, so
/// the device's time counts; where the host is behind, loading and launching count. Work between
/// steps never counts.
class DeviceStepEnd {
 public:
  /// `world`: the device's collectives over all ranks, which outlive this.
  DeviceStepEnd(Collectives& world, at::Device device, double clip_norm);

  /// A step begins on the host; the device may still be in the one before.
  void begin();
  /// Launches the sum of `own` over all ranks, with `loss` (undefined: none) and `squares`, scalars
  /// on the device. Does not wait. Collective; the results of the step before have been read.
  void sum(const StepSums& own, const at::Tensor& loss, const at::Tensor& squares);
  /// Returns a number in the device's memory for work launched after sum(): the factor of the
  /// gradient (clipping and 1/N), NaN where loss or norm is not finite or there is no target.
  const double* scale() const { return scale_.const_data_ptr<double>(); }
  /// The device has been given all of the step.
  void end();

  struct Result {
    StepSums sums;
    double seconds;
  };
  /// Waits until the device has done the step that ended last.
  Result wait();

 private:
  at::Tensor scale_of(const at::Tensor& sums) const;

  Collectives& world_;
  at::Device device_;
  double clip_norm_;
  at::Tensor sent_, received_;  ///< StepSumValues in pinned memory
  at::Tensor scale_;
  c10::Event next_,
      begun_;  ///< starts of a step that has not ended, and of the one that ended last
  c10::Event ended_;
};

}  // namespace zea
