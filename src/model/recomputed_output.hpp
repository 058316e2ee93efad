// SPDX-License-Identifier: Apache-2.0
// The output of an operation whose memory is freed after forward and recomputed in backward.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>

namespace zea {

/// Autograd saves `y` and views of it as usual; their shared storage is freed, and later refilled.
class RecomputedOutput : public std::enable_shared_from_this<RecomputedOutput> {
 public:
  /// `recompute` returns the elements of `y` once more, in a new tensor.
  RecomputedOutput(const at::Tensor& y, std::function<at::Tensor()> recompute);

  /// Recomputes y before the backward of the operation whose output is `reader`, if it is still
  /// freed then.
  void recompute_before(const at::Tensor& reader);
  void free();

 private:
  void recompute();

  at::Tensor y_;  ///< undefined once it is recomputed
  size_t bytes_;
  std::function<at::Tensor()> recompute_;
};

}  // namespace zea
