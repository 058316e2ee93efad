// SPDX-License-Identifier: Apache-2.0
// The sums of a step where its gradients are: added up over all ranks and judged by the device, so
// that the update can be launched behind them. The host reads them when it likes.
#pragma once

#include <ATen/ATen.h>

#include "comm/collectives.hpp"
#include "train/step_sums.hpp"

namespace zea {

class DeviceStepSums {
 public:
  /// `world`: the device's collectives over all ranks, which outlive it.
  DeviceStepSums(Collectives& world, at::Device device, double clip_norm);

  /// Launches the sum of `own` over all ranks, with `loss` (undefined: none) and `squares`, of no
  /// dims, which lie on the device. Does not wait. Collective; the last ones have been read.
  void start(const StepSums& own, const at::Tensor& loss, const at::Tensor& squares);
  /// For what is launched behind start(), in the device's memory: what the gradient is multiplied
  /// by (clipping and 1/N); NaN where loss or norm is not finite, or there is no target.
  const double* scale() const { return scale_.const_data_ptr<double>(); }
  /// What was started, which the device has done.
  StepSums read() const;

 private:
  at::Tensor scale_of(const at::Tensor& sums) const;

  Collectives& world_;
  at::Device device_;
  double clip_norm_;
  at::Tensor sent_, received_;  ///< StepSumValues in pinned memory
  at::Tensor scale_;
};

}  // namespace zea
