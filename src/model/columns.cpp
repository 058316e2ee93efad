// SPDX-License-Identifier: Apache-2.0
// Splits rows into columns and concatenates columns. Gradients are separate tensors, not views,
// since the functions that receive them may change them in place.
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/error.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

struct SplitColumnsFunction : Function<SplitColumnsFunction> {
  static Tensors forward(Context* ctx, const Tensor& x, int64_t count) {
    ctx->saved_data["columns"] = x.size(1);
    return {x.narrow(1, 0, count).contiguous(), x.narrow(1, count, x.size(1) - count).contiguous()};
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    ZEA_ASSERT(outputs[0].size(1) + outputs[1].size(1) == ctx->saved_data.at("columns").toInt());
    return {at::cat({outputs[0], outputs[1]}, 1), {}};
  }
};

struct JoinedColumnsFunction : Function<JoinedColumnsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& y) {
    ctx->saved_data["columns"] = x.size(1);
    return at::cat({x, y}, 1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const int64_t columns = ctx->saved_data.at("columns").toInt();
    const Tensor& dy = outputs[0];
    const auto part = [&](size_t input, int64_t first, int64_t count) {
      return ctx->needs_input_grad(input) ? dy.narrow(1, first, count).contiguous() : Tensor();
    };
    return {part(0, 0, columns), part(1, columns, dy.size(1) - columns)};
  }
};

}  // namespace

SplitRows split_columns(const at::Tensor& x, int64_t count) {
  const Tensors made = SplitColumnsFunction::apply(x, count);
  return {made[0], made[1]};
}

at::Tensor joined_columns(const at::Tensor& x, const at::Tensor& y) {
  return JoinedColumnsFunction::apply(x, y);
}

}  // namespace zea
