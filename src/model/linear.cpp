// SPDX-License-Identifier: Apache-2.0
// Linear, embedding and what lies between rows of one: functions whose parameters' gradients are
// sums over rows.
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/matmul.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

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
    if (weight->trainable()) add_weight_gradient(*weight, order, ctx->get_saved_variables()[0], dy);
    if (bias && bias->trainable()) add_bias_gradient(*bias, dy);
    return {dx, {}, {}, {}, {}};
  }
};

struct AddToColumnsFunction : Function<AddToColumnsFunction> {
  static Tensor forward(Context* ctx, const Tensor& y, const Tensor& z, int64_t begin,
                        double scale) {
    ctx->saved_data["begin"] = begin;
    ctx->saved_data["columns"] = z.size(1);
    ctx->saved_data["scale"] = scale;
    Tensor sum = y;
    ctx->mark_dirty({sum});
    sum.narrow(1, begin, z.size(1)).add_(z, scale);
    return sum;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const auto dz = outputs[0].narrow(1, ctx->saved_data.at("begin").toInt(),
                                      ctx->saved_data.at("columns").toInt());
    return {outputs[0], dz * ctx->saved_data.at("scale").toDouble(), {}, {}};
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

struct InterpolatedRowsFunction : Function<InterpolatedRowsFunction> {
  static Tensor forward(Context* ctx, const Tensor& anchor, const Tensor& rows,
                        const Tensor& shares, Parameter* table) {
    (void)anchor;
    remember(ctx, {table});
    ctx->save_for_backward({rows, shares});
    Tensor sum = table->value().index_select(0, rows.select(1, 0)).mul_(shares.narrow(1, 0, 1));
    for (int64_t i = 1; i < rows.size(1); ++i)
      sum.addcmul_(table->value().index_select(0, rows.select(1, i)), shares.narrow(1, i, 1));
    return sum;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    Tensor& gradient = recall(ctx, 0)->gradient();
    const Tensors saved = ctx->get_saved_variables();
    for (int64_t i = 0; i < saved[0].size(1); ++i)
      gradient.index_add_(0, saved[0].select(1, i),
                          outputs[0].mul(saved[1].narrow(1, i, 1)).to(gradient.scalar_type()));
    return {{}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias, WeightOrder order) {
  return LinearFunction::apply(x, weight.anchor(), &weight, bias, order);
}

at::Tensor add_to_columns(const at::Tensor& y, const at::Tensor& z, int64_t begin, double scale) {
  return AddToColumnsFunction::apply(y, z, begin, scale);
}

at::Tensor embedding(const at::Tensor& ids, Parameter& weight) {
  return EmbeddingFunction::apply(weight.anchor(), ids, &weight);
}

at::Tensor interpolated_rows(const at::Tensor& rows, const at::Tensor& shares, Parameter& table) {
  return InterpolatedRowsFunction::apply(table.anchor(), rows, shares, &table);
}

}  // namespace zea
