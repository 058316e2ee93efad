// SPDX-License-Identifier: Apache-2.0
#include "model/parameter.hpp"
#include "model/parameter_function.hpp"

#include "core/error.hpp"

namespace zea {

Parameter::Parameter(std::string name, std::vector<int64_t> shape, bool trainable,
                     at::Device device)
    : name_(std::move(name)), shape_(std::move(shape)), trainable_(trainable) {
  anchor_ = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device));
  anchor_.set_requires_grad(trainable);
}

const at::Tensor& Parameter::value() const {
  if (!value_.defined())
    throw InternalError("parameter " + name_ + " is read while it is not gathered");
  return value_;
}

at::Tensor& Parameter::gradient() {
  if (!gradient_.defined())
    throw InternalError("parameter " + name_ + " has no gradient buffer now");
  if (takes_new_gradient()) gradient_.zero_();
  return gradient_;
}

void DeferredGradients::defer_weight(Parameter& weight, WeightOrder order, const at::Tensor& x,
                                     const at::Tensor& dy) {
  deferred_.push_back({&weight, order, x.detach(), dy.detach()});  // not their graphs
}

void DeferredGradients::defer_experts(Parameter& weight, WeightOrder order, const at::Tensor& x,
                                      const at::Tensor& dy, const at::Tensor& ends) {
  deferred_.push_back({&weight, order, x.detach(), dy.detach(), ends});
}

void DeferredGradients::defer_bias(Parameter& bias, const at::Tensor& dy) {
  deferred_.push_back({&bias, WeightOrder::OutIn, {}, dy.detach()});
}

void DeferredGradients::run() {
  const at::AutoGradMode mode(false);
  for (Product& one : deferred_) {
    if (one.ends.defined())
      detail::add_expert_gradients_now(*one.parameter, one.order, one.x, one.dy, one.ends);
    else if (one.x.defined())
      detail::add_weight_gradient_now(*one.parameter, one.order, one.x, one.dy);
    else
      detail::add_bias_gradient_now(*one.parameter, one.dy);
    one.x.reset();
    one.dy.reset();
  }
  deferred_.clear();
}

DeferringGradients::DeferringGradients(std::vector<Parameter*> parameters,
                                       DeferredGradients& gradients)
    : parameters_(std::move(parameters)) {
  for (Parameter* parameter : parameters_) parameter->set_deferred(&gradients);
}

DeferringGradients::~DeferringGradients() {
  for (Parameter* parameter : parameters_) parameter->set_deferred(nullptr);
}

}  // namespace zea
