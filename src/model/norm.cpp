// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>

#include "zea/kernels/row_kernels.hpp"
#include "zea/model/functions.hpp"
#include "zea/model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

struct LayerNormFunction : Function<LayerNormFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, Parameter* weight,
                        Parameter* bias, double eps) {
    (void)anchor;
    remember(ctx, {weight, bias});
    auto [y, mean, rstd] =
        at::native_layer_norm(x, weight->shape(), weight->value(), bias->value(), eps);
    ctx->save_for_backward({x, mean, rstd});
    return y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    Parameter* weight = recall(ctx, 0);
    Parameter* bias = recall(ctx, 1);
    const bool trains = weight->trainable();
    auto [dx, dweight, dbias] = at::native_layer_norm_backward(
        outputs[0].contiguous(), saved[0], weight->shape(), saved[1], saved[2], weight->value(),
        bias->value(), {ctx->needs_input_grad(0), trains, trains});
    if (trains) {
      weight->gradient().add_(dweight);
      bias->gradient().add_(dbias);
    }
    return {dx, {}, {}, {}, {}};
  }
};

struct RmsNormFunction : Function<RmsNormFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, Parameter* weight,
                        double eps) {
    (void)anchor;
    remember(ctx, {weight});
    const Tensor rows = x.contiguous();
    auto [y, scale] = rms_norm_forward(rows, weight->value(), eps);
    ctx->save_for_backward({rows, scale});
    return y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    Parameter* weight = recall(ctx, 0);
    const Tensor dweight = weight->trainable() ? weight->gradient() : Tensor();
    return {rms_norm_backward(outputs[0].contiguous(), saved[0], saved[1], weight->value(),
                              ctx->needs_input_grad(0), dweight),
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x;
}

at::Tensor layer_norm(const at::Tensor& x, Parameter& weight, Parameter& bias, double eps) {
  return LayerNormFunction::apply(x, weight.anchor(), &weight, &bias, eps);
}

at::Tensor rms_norm(const at::Tensor& x, Parameter& weight, double eps) {
  return RmsNormFunction::apply(x, weight.anchor(), &weight, eps);
}

}  // namespace zea
