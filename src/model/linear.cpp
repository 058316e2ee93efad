// SPDX-License-Identifier: Apache-2.0
// Linear, embedding, and the embedding of patches: functions whose parameters' gradients are sums
// over rows.
#include <torch/csrc/autograd/custom_function.h>

#include "parameter_function.hpp"
#include "zea/kernels/matmul.hpp"
#include "zea/model/functions.hpp"

namespace zea {
namespace {

using namespace detail;

/// How a weight lies in its buffer.
enum class WeightOrder { OutIn, InOut };

/// The weight as (out, in).
Tensor out_in(const Tensor& weight, WeightOrder order) {
  return order == WeightOrder::OutIn ? as_matrix(weight) : weight.t();
}

struct LinearFunction : Function<LinearFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, Parameter* weight,
                        Parameter* bias, WeightOrder order) {
    (void)anchor;
    remember(ctx, {weight, bias});
    ctx->saved_data["in_out"] = order == WeightOrder::InOut;
    if (weight->trainable()) ctx->save_for_backward({x});
    const Tensor matrix = out_in(weight->value(), order);
    return bias ? biased_product(bias->value(), x, matrix.t()) : product(x, matrix.t());
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor dy = outputs[0].contiguous();
    Parameter* weight = recall(ctx, 0);
    Parameter* bias = recall(ctx, 1);
    const auto order =
        ctx->saved_data.at("in_out").toBool() ? WeightOrder::InOut : WeightOrder::OutIn;
    Tensor dx;
    if (ctx->needs_input_grad(0)) dx = product(dy, out_in(weight->value(), order));
    if (weight->trainable()) {
      const Tensor x = ctx->get_saved_variables()[0];
      if (order == WeightOrder::OutIn)
        add_outer_product(weight->gradient(), dy, x);
      else
        add_outer_product(weight->gradient(), x, dy);
    }
    if (bias && bias->trainable())
      bias->gradient().add_(dy.sum(0, false, bias->gradient().scalar_type()));
    return {dx, {}, {}, {}, {}};
  }
};

struct EmbeddingFunction : Function<EmbeddingFunction> {
  static Tensor forward(Context* ctx, const Tensor& anchor, const Tensor& ids, Parameter* weight) {
    (void)anchor;
    remember(ctx, {weight});
    ctx->save_for_backward({ids});
    return weight->value().index_select(0, ids);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    Tensor& gradient = recall(ctx, 0)->gradient();
    gradient.index_add_(0, ctx->get_saved_variables()[0], outputs[0].to(gradient.scalar_type()));
    return {{}, {}, {}};
  }
};

struct ClassAndPositionsFunction : Function<ClassAndPositionsFunction> {
  static Tensor forward(Context* ctx, const Tensor& patches, const Tensor& anchor,
                        Parameter* class_token, Parameter* positions) {
    (void)anchor;
    remember(ctx, {class_token, positions});
    const int64_t images = patches.size(0), hidden = patches.size(2);
    const Tensor first = class_token->value().view({1, 1, hidden}).expand({images, 1, hidden});
    return at::cat({first, patches}, 1).add_(positions->value()).flatten(0, 1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    Parameter* class_token = recall(ctx, 0);
    Parameter* positions = recall(ctx, 1);
    const int64_t tokens = positions->shape()[0], hidden = positions->shape()[1];
    const Tensor dy = outputs[0].view({-1, tokens, hidden});
    if (positions->trainable()) {
      Tensor sum = dy.sum(0, false, positions->gradient().scalar_type());
      positions->gradient().add_(sum);
      class_token->gradient().add_(sum[0]);
    }
    return {dy.narrow(1, 1, tokens - 1), {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias) {
  return LinearFunction::apply(x, weight.anchor(), &weight, bias, WeightOrder::OutIn);
}

at::Tensor linear_in_out(const at::Tensor& x, Parameter& weight, Parameter* bias) {
  return LinearFunction::apply(x, weight.anchor(), &weight, bias, WeightOrder::InOut);
}

at::Tensor embedding(const at::Tensor& ids, Parameter& weight) {
  return EmbeddingFunction::apply(weight.anchor(), ids, &weight);
}

at::Tensor add_class_and_positions(const at::Tensor& patches, Parameter& class_token,
                                   Parameter& positions) {
  return ClassAndPositionsFunction::apply(patches, positions.anchor(), &class_token, &positions);
}

}  // namespace zea
