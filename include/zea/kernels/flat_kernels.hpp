// SPDX-License-Identifier: Apache-2.0
// Kernels over flat shards: AdamW with clipping and 1/N folded in, and the sum of squares with its
// finite check, each in one pass, on the host and, in a build with device kernels, on devices.
#pragma once

#include <ATen/ATen.h>

#include <memory>

namespace zea {

/// Lets host tensors take memory that others have freed. Main (or a test's main) owns one before
/// any kernel runs.
class KernelRuntime {
 public:
  KernelRuntime();
  ~KernelRuntime();
  KernelRuntime(const KernelRuntime&) = delete;
  KernelRuntime& operator=(const KernelRuntime&) = delete;

 private:
  std::unique_ptr<c10::Allocator> kept_memory_;
  c10::Allocator* before_;  ///< that of host tensors
};

/// One update of AdamW (arXiv:1711.05101), or of Adam (arXiv:1412.6980) with the decay added to the
/// gradient.
struct AdamwUpdate {
  double lr = 0;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;      ///< AdamW; false: Adam
  double gradient_scale = 1;  ///< the gradient is multiplied by it: clipping and 1/N
  int64_t step = 1;           ///< counts from 1
};

/// Updates `parameter` and the moments in place; all are 1-d, contiguous, of one type (fp32 or
/// fp64) and length.
void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg,
           at::Tensor exp_avg_sq, const AdamwUpdate& update);

/// The sum of squares, a double of no dims where `flat` is: a device is not waited for. Independent
/// of the number of threads; not finite if any element is not.
at::Tensor sum_of_squares(const at::Tensor& flat);

/// The same by libtorch's operations: what the kernels are tested against, and what other devices
/// and types use.
void adamw_reference(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg,
                     at::Tensor exp_avg_sq, const AdamwUpdate& update);
at::Tensor sum_of_squares_reference(const at::Tensor& flat);

}  // namespace zea
