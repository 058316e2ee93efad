// SPDX-License-Identifier: Apache-2.0
#include "model/parameter.hpp"

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
  return gradient_;
}

}  // namespace zea
