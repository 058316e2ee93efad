// SPDX-License-Identifier: Apache-2.0
// The tensors of a model in its files.
#pragma once

#include <vector>

#include "spec/model_spec.hpp"
#include "zea/weights.hpp"

namespace zea::testing {

inline std::vector<TensorInfo> tensors_of(const ModelSpec& model, DType dtype = DType::Float32) {
  std::vector<TensorInfo> tensors;
  for (const ParamSpec& param : model.params)
    if (param.begins_tensor()) tensors.push_back({param.name, param.tensor_shape(), dtype});
  return tensors;
}

}  // namespace zea::testing
