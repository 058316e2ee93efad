// SPDX-License-Identifier: Apache-2.0
// Kernels over flat shards: AdamW and SGD with clipping and 1/N folded in, and the sum of squares
// with its finite check, each in one pass, on the host and, in a build with device kernels, on
// devices.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <vector>

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
  std::unique_ptr<c10::Allocator> caching_allocator_;
  c10::Allocator* before_;  ///< the previous allocator of host tensors
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
  /// A pointer to memory of the parameter's device, which the kernel reads in place of
  /// gradient_scale; NaN there: the update changes nothing. Must be null if there are no kernels
  /// for that device (has_flat_kernels()).
  const double* device_scale = nullptr;
  int64_t step = 1;  ///< counts from 1
};

/// The tensors of an update: 1-d, contiguous, of one type (fp32 or fp64) and length.
struct AdamwRun {
  at::Tensor parameter, gradient, exp_avg, exp_avg_sq;
  AdamwUpdate update;
};

/// Updates parameters and moments in place; on a device all of one type in a launch, or as few as
/// can name them.
void adamw(const std::vector<AdamwRun>& runs);
void adamw(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& exp_avg,
           const at::Tensor& exp_avg_sq, const AdamwUpdate& update);

/// One update of SGD without dampening and Nesterov's step: momentum_buffer = momentum *
/// momentum_buffer + gradient + decay * parameter, which is then taken lr times.
struct SgdUpdate {
  double lr = 0;
  double momentum = 0, weight_decay = 0;
  double gradient_scale = 1;             ///< as AdamwUpdate's
  const double* device_scale = nullptr;  ///< as AdamwUpdate's
};

/// The tensors of an update, as in AdamwRun.
struct SgdRun {
  at::Tensor parameter, gradient, momentum_buffer;
  SgdUpdate update;
};

/// Takes runs as adamw() does.
void sgd(const std::vector<SgdRun>& runs);

/// The tensors of Nesterov's step, as in AdamwRun: the average moves towards the gradient, and
/// `update` is the gradient moved towards the average.
struct NesterovRun {
  at::Tensor average, gradient, update;
  double momentum = 0;
  double gradient_scale = 1;
};

/// Takes runs as adamw() does.
void nesterov(const std::vector<NesterovRun>& runs);

/// Whether flat buffers on `device` are for these kernels, and not for libtorch's operations.
bool has_flat_kernels(at::Device device);

/// (chunk) fp64 sums of squares of all flats' chunks of kChunkElements, in order, where they are.
/// They are on one device that has kernels, and of one type. Does not wait for it.
at::Tensor chunk_squares(const std::vector<at::Tensor>& flats);

/// The sum of squares of all, likewise; waits for the devices that they are on. Independent of the
/// number of threads; not finite if any element is not.
double sum_of_squares(const std::vector<at::Tensor>& flats);

/// The same by libtorch's operations: what the kernels are tested against, and what other devices
/// and types use.
void adamw_reference(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg,
                     at::Tensor exp_avg_sq, const AdamwUpdate& update);
void sgd_reference(const SgdRun& run);
void nesterov_reference(const NesterovRun& run);
at::Tensor sum_of_squares_reference(const at::Tensor& flat);

// AdamW whose moments are kept in 8 bits (Dettmers et al., arXiv:2110.02861): of each block of
// elements the largest magnitude, its scale, and of each element a code for what part of it it is.

/// The parts of a scale that codes stand for, ascending: 0 and 1, and in each of seven decades
/// below 1 the middles of equal parts, twice as many as in the decade below it. Signed: from 1 part
/// in the lowest decade on, of both signs. Unsigned: from 2 on.
const std::array<double, 256>& dynamic_codes(bool is_signed);

/// A moment in blocks; 1-d, contiguous.
struct BlockwiseMoment {
  at::Tensor codes;   ///< (elements) bytes, indices into dynamic_codes()
  at::Tensor scales;  ///< (elements / block), of the parameter's type
};

/// One update of AdamW in the parameter's type (fp32 or fp64); then the moments become their
/// nearest codes, but a second moment above 0 never 0. `exp_avg` is signed. All are of whole
/// blocks.
void blockwise_adamw(at::Tensor parameter, const at::Tensor& gradient,
                     const BlockwiseMoment& exp_avg, const BlockwiseMoment& exp_avg_sq,
                     const AdamwUpdate& update);

/// The same by adamw() and libtorch's operations, for devices without zea's kernels.
void blockwise_adamw_reference(at::Tensor parameter, const at::Tensor& gradient,
                               const BlockwiseMoment& exp_avg, const BlockwiseMoment& exp_avg_sq,
                               const AdamwUpdate& update);

}  // namespace zea
