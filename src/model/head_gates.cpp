// SPDX-License-Identifier: Apache-2.0
// Gated attention (arXiv:2505.06708): the linear of queries makes a gate behind each query head,
// and the heads' outputs are scaled by the gates' sigmoids.
#include <torch/csrc/autograd/custom_function.h>

#include "core/error.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

/// Views the first columns of rows as (tokens, heads, 2, head_dim): queries and gates.
Tensor as_gated_heads(const Tensor& rows, int64_t heads, int64_t dim) {
  return rows.narrow(1, 0, 2 * heads * dim).view({rows.size(0), heads, 2, dim});
}

/// Views the first columns of rows as (tokens, heads, head_dim).
Tensor as_heads(const Tensor& rows, int64_t heads, int64_t dim) {
  return rows.narrow(1, 0, heads * dim).view({rows.size(0), heads, dim});
}

struct SplitGatesFunction : Function<SplitGatesFunction> {
  static Tensors forward(Context* ctx, const Tensor& x, int64_t heads, int64_t dim) {
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["dim"] = dim;
    const int64_t queries = heads * dim, others = x.size(1) - 2 * queries;
    const Tensor gated = as_gated_heads(x, heads, dim);
    const Tensor qkv = at::empty({x.size(0), queries + others}, x.options());
    as_heads(qkv, heads, dim).copy_(gated.select(2, 0));
    qkv.narrow(1, queries, others).copy_(x.narrow(1, 2 * queries, others));
    return {qkv, gated.select(2, 1).reshape({x.size(0), queries})};
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const int64_t heads = ctx->saved_data.at("heads").toInt();
    const int64_t dim = ctx->saved_data.at("dim").toInt();
    const Tensor &dqkv = outputs[0], &dgates = outputs[1];
    const int64_t queries = heads * dim, others = dqkv.size(1) - queries;
    const Tensor dx = at::empty({dqkv.size(0), 2 * queries + others}, dqkv.options());
    const Tensor gated = as_gated_heads(dx, heads, dim);
    gated.select(2, 0).copy_(as_heads(dqkv, heads, dim));
    gated.select(2, 1).copy_(as_heads(dgates, heads, dim));
    dx.narrow(1, 2 * queries, others).copy_(dqkv.narrow(1, queries, others));
    return {dx, {}, {}};
  }
};

}  // namespace

GatedHeads split_gates(const at::Tensor& x, int64_t heads, int64_t dim) {
  ZEA_ASSERT(x.size(1) >= 2 * heads * dim);
  const Tensors made = SplitGatesFunction::apply(x, heads, dim);
  return {made[0], made[1]};
}

}  // namespace zea
