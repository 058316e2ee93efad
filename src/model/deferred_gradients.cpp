// SPDX-License-Identifier: Apache-2.0
#include "model/deferred_gradients.hpp"

#include "model/parameter_function.hpp"

namespace zea {

void DeferredGradients::put_off_weight(Parameter& weight, WeightOrder order, const at::Tensor& x,
                                       const at::Tensor& dy) {
  put_off_.push_back({&weight, order, x.detach(), dy.detach()});  // not their graphs
}

void DeferredGradients::put_off_bias(Parameter& bias, const at::Tensor& dy) {
  put_off_.push_back({&bias, WeightOrder::OutIn, {}, dy.detach()});
}

void DeferredGradients::run() {
  const at::AutoGradMode mode(false);
  for (Product& one : put_off_) {
    if (one.x.defined())
      detail::add_weight_gradient_now(*one.parameter, one.order, one.x, one.dy);
    else
      detail::add_bias_gradient_now(*one.parameter, one.dy);
    one.x.reset();
    one.dy.reset();
  }
  put_off_.clear();
}

PuttingOff::PuttingOff(std::vector<Parameter*> parameters, DeferredGradients& gradients)
    : parameters_(std::move(parameters)) {
  for (Parameter* parameter : parameters_) parameter->set_deferred(&gradients);
}

PuttingOff::~PuttingOff() {
  for (Parameter* parameter : parameters_) parameter->set_deferred(nullptr);
}

}  // namespace zea
