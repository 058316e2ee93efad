// SPDX-License-Identifier: Apache-2.0
// Columns times learned numbers (LayerScale, arXiv:2103.17239).
#include <torch/csrc/autograd/custom_function.h>

#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

struct LayerScaleFunction : Function<LayerScaleFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, Parameter* scale) {
    (void)anchor;
    remember(ctx, {scale});
    if (scale->trainable()) ctx->save_for_backward({x});
    return x * scale->value();
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor& dy = outputs[0];
    Parameter* scale = recall(ctx, 0);
    if (scale->trainable()) add_bias_gradient_now(*scale, dy * ctx->get_saved_variables()[0]);
    return {ctx->needs_input_grad(0) ? dy * scale->value() : Tensor(), {}, {}};
  }
};

}  // namespace

at::Tensor layer_scale(const at::Tensor& x, Parameter& scale) {
  return LayerScaleFunction::apply(x, scale.anchor(), &scale);
}

}  // namespace zea
