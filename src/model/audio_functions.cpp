// SPDX-License-Identifier: Apache-2.0
// Functions of the audio encoder: windows of rows, over which a convolution is a linear, and biases
// of a fused projection whose keys have none.
#include <torch/csrc/autograd/custom_function.h>

#include "core/error.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

struct WindowsFunction : Function<WindowsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& windows) {
    ctx->save_for_backward({windows});
    ctx->saved_data["rows"] = x.size(0);
    const int64_t width = windows.size(1);
    Tensor found = at::empty({windows.size(0), x.size(1), width}, x.options());
    for (int64_t k = 0; k < width; ++k) {
      const Tensor rows = windows.select(1, k);
      // There is nothing before the first row: any row does for the product with 0.
      const Tensor column = x.index_select(0, rows.clamp_min(0));
      found.select(2, k).copy_(column.mul_((rows >= 0).unsqueeze(1)));
    }
    return found.flatten(1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor windows = ctx->get_saved_variables()[0];
    const int64_t width = windows.size(1);
    const Tensor dy = outputs[0].reshape({windows.size(0), outputs[0].size(1) / width, width});
    Tensor dx = at::zeros({ctx->saved_data.at("rows").toInt(), dy.size(1)}, dy.options());
    for (int64_t k = 0; k < width; ++k) {
      const Tensor rows = windows.select(1, k);
      dx.index_add_(0, rows.clamp_min(0), dy.select(2, k) * (rows >= 0).unsqueeze(1));
    }
    return {dx, {}};
  }
};

struct QueryValueBiasFunction : Function<QueryValueBiasFunction> {
  static Tensor forward(Context* ctx, const Tensor& qkv, const Tensor& anchor, Parameter* query,
                        Parameter* value) {
    (void)anchor;
    remember(ctx, {query, value});
    Tensor sum = qkv;
    ctx->mark_dirty({sum});
    sum.narrow(1, 0, query->shape()[0]).add_(query->value());
    const int64_t width = value->shape()[0];
    sum.narrow(1, sum.size(1) - width, width).add_(value->value());
    return sum;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor& dy = outputs[0];
    Parameter* query = recall(ctx, 0);
    Parameter* value = recall(ctx, 1);
    if (query->trainable()) {
      const int64_t width = value->shape()[0];
      add_bias_gradient(*query, dy.narrow(1, 0, query->shape()[0]));
      add_bias_gradient(*value, dy.narrow(1, dy.size(1) - width, width));
    }
    return {dy, {}, {}, {}};
  }
};

}  // namespace

at::Tensor windows_of(const at::Tensor& x, const at::Tensor& windows) {
  return WindowsFunction::apply(x, windows);
}

at::Tensor add_query_value_biases(const at::Tensor& qkv, Parameter& query, Parameter& value) {
  ZEA_ASSERT(query.trainable() == value.trainable());
  return QueryValueBiasFunction::apply(qkv, query.anchor(), &query, &value);
}

}  // namespace zea
