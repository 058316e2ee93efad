// SPDX-License-Identifier: Apache-2.0
// A parameter as a unit's forward function sees it: a view of the gathered buffer, and a view of
// the buffer into which its gradient is added. Autograd never holds either: functions keep a
// pointer to the Parameter and look the views up when they run, so a gathered buffer may be dropped
// after forward and come back elsewhere before backward.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "spec/model_spec.hpp"

namespace zea {

class DeferredGradients;

class Parameter {
 public:
  Parameter(std::string name, std::vector<int64_t> shape, bool trainable, at::Device device);

  const std::string& name() const { return name_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  bool trainable() const { return trainable_; }

  /// (shape), in the compute type. Throws InternalError while the buffer is not gathered.
  const at::Tensor& value() const;
  /// (shape), in the gradient type; functions add into it. Throws InternalError when there is none.
  at::Tensor& gradient();
  /// Marks the gradient's memory as uninitialized: the first call of gradient() zeroes it, unless a
  /// linear overwrites it first (takes_new_gradient()).
  void renew_gradient() { is_new_ = true; }
  /// Returns whether the gradient is uninitialized, so that the caller has to overwrite it.
  bool takes_new_gradient() { return std::exchange(is_new_, false); }
  /// A scalar leaf that requires a gradient when the parameter trains: it ties autograd's graph to
  /// the parameter, and never receives a gradient itself.
  const at::Tensor& anchor() const { return anchor_; }

  /// The list of weight gradients to be computed later; null: functions add them at once.
  DeferredGradients* deferred() const { return deferred_; }
  void set_deferred(DeferredGradients* deferred) { deferred_ = deferred; }

  void set_value(at::Tensor value) { value_ = std::move(value); }
  void set_gradient(at::Tensor gradient) { gradient_ = std::move(gradient); }

 private:
  std::string name_;
  std::vector<int64_t> shape_;
  bool trainable_;
  bool is_new_ = false;  ///< the gradient is uninitialized
  at::Tensor value_, gradient_, anchor_;
  DeferredGradients* deferred_ = nullptr;
};

// Deferred weight gradients, for zero-bubble pipelines (arXiv:2401.10241): backward computes the
// gradient of a linear's inputs and notes the rest. Functions note the gradients of a Parameter
// here, if it is given one of these, instead of adding them; run() adds them.

/// The deferred weight gradients of one backward pass. Parameters must outlive it, and it must not
/// move while they point at it.
class DeferredGradients {
 public:
  /// Notes the gradient of `weight`, which lies as `order` says, for outputs' gradients `dy`
  /// (tokens, out) and inputs `x` (tokens, in). Neither may change before run().
  void defer_weight(Parameter& weight, WeightOrder order, const at::Tensor& x,
                    const at::Tensor& dy);
  /// Likewise for the weights of experts: rows are sorted by expert, `ends` as in DispatchedRows.
  void defer_experts(Parameter& weight, WeightOrder order, const at::Tensor& x,
                     const at::Tensor& dy, const at::Tensor& ends);
  /// `bias` gets the sum of `dy` (tokens, out) over tokens.
  void defer_bias(Parameter& bias, const at::Tensor& dy);

  /// Adds all noted gradients in the order in which they were noted, so that the result has the
  /// bits of adding them at once, and releases their tensors. The parameters' gradients must be
  /// there, their values need not.
  void run();

  bool empty() const { return deferred_.empty(); }

 private:
  struct Product {
    Parameter* parameter;
    WeightOrder order;
    at::Tensor x;  ///< undefined: of a bias
    at::Tensor dy;
    at::Tensor ends = {};  ///< of experts; undefined: the weight is of one linear
  };

  std::vector<Product> deferred_;
};

/// Defers the weight gradients of `parameters` for as long as it lives.
class DeferringGradients {
 public:
  DeferringGradients(std::vector<Parameter*> parameters, DeferredGradients& gradients);
  ~DeferringGradients();
  DeferringGradients(const DeferringGradients&) = delete;
  DeferringGradients& operator=(const DeferringGradients&) = delete;

 private:
  std::vector<Parameter*> parameters_;
};

}  // namespace zea
