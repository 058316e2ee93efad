// SPDX-License-Identifier: Apache-2.0
// How an autograd function of ours keeps the Parameters it reads. Parameters outlive every graph:
// units own them.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <initializer_list>
#include <string>

#include "zea/kernels/matmul.hpp"
#include "zea/model/parameter.hpp"

namespace zea::detail {

using at::Tensor;
using Tensors = torch::autograd::variable_list;
using Context = torch::autograd::AutogradContext;
template <class T>
using Function = torch::autograd::Function<T>;

inline void remember(Context* ctx, std::initializer_list<Parameter*> parameters) {
  int position = 0;
  for (Parameter* parameter : parameters)
    ctx->saved_data[std::to_string(position++)] = reinterpret_cast<int64_t>(parameter);
}

inline Parameter* recall(Context* ctx, int position) {
  return reinterpret_cast<Parameter*>(ctx->saved_data.at(std::to_string(position)).toInt());
}

/// The weight as (out, in).
inline Tensor as_matrix(const Tensor& weight) {
  return weight.dim() == 2 ? weight : weight.flatten(1);
}

/// gradient (a, ...) += left^T right, for left (rows, a) and right (rows, ...).
inline void add_outer_product(Tensor& gradient, const Tensor& left, const Tensor& right) {
  const Tensor matrix = as_matrix(gradient);
  if (gradient.scalar_type() == left.scalar_type())
    add_product(matrix, left.t(), right);
  else
    matrix.add_(at::mm(left.t(), right));
}

}  // namespace zea::detail
