// SPDX-License-Identifier: Apache-2.0
// Linears whose weight is cut over tp ranks: by its outputs (column) or by its inputs (row).
#include "kernels/matmul.hpp"
#include "parallel/tensor_rows.hpp"

namespace zea::detail {
namespace {

WeightOrder recall_order(Context* ctx) {
  return ctx->saved_data.at("in_out").toBool() ? WeightOrder::InOut : WeightOrder::OutIn;
}

void remember_linear(Context* ctx, const TensorRows& rows, const Tensor& x, Parameter* weight,
                     Parameter* bias, WeightOrder order) {
  remember(ctx, {weight, bias});
  remember_rows(ctx, rows);
  ctx->saved_data["in_out"] = order == WeightOrder::InOut;
  if (weight->trainable()) ctx->save_for_backward({x});
}

/// `gathered` as something that may be kept: where rows are dealt it is in a buffer that the next
/// function takes.
Tensor to_keep(const TensorRows& rows, const Parameter& weight, const Tensor& gathered) {
  return weight.deferred() && rows.are_dealt() ? gathered.clone() : gathered;
}

/// The sum over ranks of a b, on its way.
TravellingRows summed_product(const TensorRows& rows, const Tensor& a, const Tensor& b) {
  const Tensor partial = rows.partial(a.size(0), b.size(1), a.options());
  product_into(partial, a, b);
  return rows.sum(partial);
}

struct ColumnFunction : Function<ColumnFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, const TensorRows* rows,
                        Parameter* weight, Parameter* bias, WeightOrder order) {
    (void)anchor;
    remember_linear(ctx, *rows, x, weight, bias, order);
    const Tensor all = rows->gather(x).take(), matrix = out_in(weight->value(), order).t();
    return bias ? biased_product(bias->value(), all, matrix) : product(all, matrix);
  }

  // The gathering of x goes on under the product of dx, and the sum of dx under that of the weight.
  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor dy = outputs[0].contiguous();
    const TensorRows rows = recall_rows(ctx);
    const WeightOrder order = recall_order(ctx);
    Parameter* weight = recall(ctx, 0);
    Parameter* bias = recall(ctx, 1);
    std::optional<TravellingRows> x, dx;
    if (weight->trainable()) x = rows.gather(ctx->get_saved_variables()[0]);
    if (ctx->needs_input_grad(0)) dx = summed_product(rows, dy, out_in(weight->value(), order));
    if (bias && bias->trainable()) add_bias_gradient(*bias, dy);
    if (x) add_weight_gradient(*weight, order, to_keep(rows, *weight, x->take()), dy);
    return {dx ? dx->take() : Tensor(), {}, {}, {}, {}, {}};
  }
};

struct RowFunction : Function<RowFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, const TensorRows* rows,
                        Parameter* weight, Parameter* bias, WeightOrder order) {
    (void)anchor;
    remember_linear(ctx, *rows, x, weight, bias, order);
    Tensor y = summed_product(*rows, x, out_in(weight->value(), order).t()).take();
    return bias ? y.add_(bias->value()) : y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const TensorRows rows = recall_rows(ctx);
    const WeightOrder order = recall_order(ctx);
    Parameter* weight = recall(ctx, 0);
    Parameter* bias = recall(ctx, 1);
    const Tensor dy_here = outputs[0].contiguous();
    TravellingRows travelling = rows.gather(dy_here);
    if (bias && bias->trainable()) add_bias_gradient(*bias, dy_here);
    const Tensor dy = travelling.take();
    Tensor dx;
    if (ctx->needs_input_grad(0)) dx = product(dy, out_in(weight->value(), order));
    if (weight->trainable())
      add_weight_gradient(*weight, order, ctx->get_saved_variables()[0],
                          to_keep(rows, *weight, dy));
    return {dx, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor tensor_column_linear(const TensorRows& rows, const at::Tensor& x, Parameter& weight,
                                Parameter* bias, WeightOrder order) {
  return ColumnFunction::apply(x, weight.anchor(), &rows, &weight, bias, order);
}

at::Tensor tensor_row_linear(const TensorRows& rows, const at::Tensor& x, Parameter& weight,
                             Parameter* bias, WeightOrder order) {
  return RowFunction::apply(x, weight.anchor(), &rows, &weight, bias, order);
}

}  // namespace zea::detail
