// SPDX-License-Identifier: Apache-2.0
// The output of an operation whose memory is freed after forward and made again in backward.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>

namespace zea {

/// Autograd's nodes save `y` as ever, and so do views of it: what is freed and made again is the
/// memory that all of them share.
class RemadeOutput : public std::enable_shared_from_this<RemadeOutput> {
 public:
  /// `remake` returns the elements of `y` once more, in a new tensor.
  RemadeOutput(const at::Tensor& y, std::function<at::Tensor()> remake);

  /// Makes y again before the backward of the operation whose output `reader` is, unless that has
  /// been done.
  void remake_before(const at::Tensor& reader);
  void free();

 private:
  void remake();

  at::Tensor y_;  ///< undefined once it has been made again
  size_t bytes_;
  std::function<at::Tensor()> remake_;
};

}  // namespace zea
