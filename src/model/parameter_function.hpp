// SPDX-License-Identifier: Apache-2.0
// How an autograd function of ours keeps the Parameters it reads. Parameters outlive every graph:
// units own them.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <initializer_list>
#include <optional>
#include <string>

#include "kernels/matmul.hpp"
#include "kernels/row_kernels.hpp"
#include "model/attention.hpp"
#include "model/functions.hpp"
#include "model/parameter.hpp"

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

inline void save_scores(Context* ctx, const AttentionScores& scores) {
  remember(ctx, {scores.sinks});
  ctx->saved_data["scale"] = scores.spec.scale;
  ctx->saved_data["softcap"] = scores.spec.softcap;
  ctx->saved_data["first_head"] = scores.first_head;
}

inline AttentionScores saved_scores(Context* ctx) {
  AttentionScores scores(
      {ctx->saved_data.at("scale").toDouble(), ctx->saved_data.at("softcap").toDouble()},
      recall(ctx, 0));
  scores.first_head = ctx->saved_data.at("first_head").toInt();
  return scores;
}

/// The anchor of a parameter that may be null.
inline std::optional<Tensor> anchor_of(const Parameter* parameter) {
  return parameter ? std::optional(parameter->anchor()) : std::nullopt;
}

/// The weight as (out, in).
inline Tensor as_matrix(const Tensor& weight) {
  return weight.dim() == 2 ? weight : weight.flatten(1);
}

/// gradient (a, ...) = beta gradient + left^T right, for left (rows, a) and right (rows, ...).
inline void add_outer_product(Tensor& gradient, const Tensor& left, const Tensor& right,
                              double beta = 1) {
  add_product(as_matrix(gradient), left.t(), right, beta);
}

/// Returns the weight of a linear as (out, in), for either order.
inline Tensor out_in(const Tensor& weight, WeightOrder order) {
  return order == WeightOrder::OutIn ? as_matrix(weight) : weight.t();
}

/// Adds what a linear's outputs of gradient `dy` make of its inputs `x`.
inline void add_weight_gradient_now(Parameter& weight, WeightOrder order, const Tensor& x,
                                    const Tensor& dy) {
  const double beta = weight.takes_new_gradient() ? 0 : 1;
  if (order == WeightOrder::OutIn)
    add_outer_product(weight.gradient(), dy, x, beta);
  else
    add_outer_product(weight.gradient(), x, dy, beta);
}

inline void add_bias_gradient_now(Parameter& bias, const Tensor& dy) {
  add_column_sums(bias.gradient(), dy);
}

/// A weight of experts, of which `ends` has an element each, as (experts, out, in).
inline Tensor expert_matrices(const Tensor& weight, WeightOrder order, const Tensor& ends) {
  if (order == WeightOrder::InOut) return weight.transpose(1, 2);
  return weight.view({ends.size(0), -1, weight.size(-1)});
}

/// The rows of each expert times its matrix: x (rows, k), matrices (experts, k, n) -> (rows, n).
Tensor expert_products(const Tensor& x, const Tensor& matrices, const Tensor& ends);

/// The gradient of the weights of experts: rows of `x` and `dy` are sorted by expert.
void add_expert_gradients_now(Parameter& weight, WeightOrder order, const Tensor& x,
                              const Tensor& dy, const Tensor& ends);

/// Adds the gradient now, or notes it if the weight's gradients are deferred: then `x` and `dy` are
/// kept.
inline void add_weight_gradient(Parameter& weight, WeightOrder order, const Tensor& x,
                                const Tensor& dy) {
  if (weight.deferred())
    weight.deferred()->defer_weight(weight, order, x, dy);
  else
    add_weight_gradient_now(weight, order, x, dy);
}

inline void add_expert_gradients(Parameter& weight, WeightOrder order, const Tensor& x,
                                 const Tensor& dy, const Tensor& ends) {
  if (weight.deferred())
    weight.deferred()->defer_experts(weight, order, x, dy, ends);
  else
    add_expert_gradients_now(weight, order, x, dy, ends);
}

inline void add_bias_gradient(Parameter& bias, const Tensor& dy) {
  if (bias.deferred())
    bias.deferred()->defer_bias(bias, dy);
  else
    add_bias_gradient_now(bias, dy);
}

}  // namespace zea::detail
