// SPDX-License-Identifier: Apache-2.0
// A parameter as a unit's forward function sees it: a view of the gathered buffer, and a view of
// the buffer into which its gradient is added. Autograd never holds either: functions keep a
// pointer to the Parameter and look the views up when they run, so a gathered buffer may be dropped
// after forward and come back elsewhere before backward.
#pragma once

#include <ATen/ATen.h>

#include <string>

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
  /// A scalar leaf that requires a gradient when the parameter trains: it ties autograd's graph to
  /// the parameter, and never receives a gradient itself.
  const at::Tensor& anchor() const { return anchor_; }

  /// Where functions note what they can put off adding to the gradient; null: they add at once.
  DeferredGradients* deferred() const { return deferred_; }
  void set_deferred(DeferredGradients* deferred) { deferred_ = deferred; }

  void set_value(at::Tensor value) { value_ = std::move(value); }
  void set_gradient(at::Tensor gradient) { gradient_ = std::move(gradient); }

 private:
  std::string name_;
  std::vector<int64_t> shape_;
  bool trainable_;
  at::Tensor value_, gradient_, anchor_;
  DeferredGradients* deferred_ = nullptr;
};

}  // namespace zea
