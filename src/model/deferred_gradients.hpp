// SPDX-License-Identifier: Apache-2.0
// Weight gradients that are put off, as zero-bubble pipelines want it (arXiv:2401.10241): what a
// linear's backward leaves to be done when it has made the gradient of its inputs. A Parameter that
// is given one of these has its gradients noted here instead of added; run() adds them.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "model/functions.hpp"

namespace zea {

/// Of one backward pass; parameters must outlive it. It must stay where it is while parameters
/// point at it.
class DeferredGradients {
 public:
  /// `weight`, which lies as `order` says, gets what outputs of gradient `dy` (tokens, out) make of
  /// inputs `x` (tokens, in). Neither may change before run().
  void put_off_weight(Parameter& weight, WeightOrder order, const at::Tensor& x,
                      const at::Tensor& dy);
  /// `bias` gets the sum of `dy` (tokens, out) over tokens.
  void put_off_bias(Parameter& bias, const at::Tensor& dy);

  /// Adds all to the parameters' gradients, in the order in which they were put off, so that the
  /// result is bitwise that of adding them at once, and lets go of their tensors. The parameters'
  /// gradients must be there, their values need not.
  void run();

  bool empty() const { return put_off_.empty(); }

 private:
  struct Product {
    Parameter* parameter;
    WeightOrder order;
    at::Tensor x;  ///< undefined: of a bias
    at::Tensor dy;
  };

  std::vector<Product> put_off_;
};

/// For as long as it lives, the gradients of `parameters` that can be put off are.
class PuttingOff {
 public:
  PuttingOff(std::vector<Parameter*> parameters, DeferredGradients& gradients);
  ~PuttingOff();
  PuttingOff(const PuttingOff&) = delete;
  PuttingOff& operator=(const PuttingOff&) = delete;

 private:
  std::vector<Parameter*> parameters_;
};

}  // namespace zea
