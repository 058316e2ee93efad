// SPDX-License-Identifier: Apache-2.0
// Linear, adding to columns, embedding and interpolated rows of a table: the gradients of their
// parameters are sums over rows.
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/matmul.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

struct LinearFunction : Function<LinearFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, Parameter* weight,
                        Parameter* bias, WeightOrder order, TpLinear cut,
                        const c10::intrusive_ptr<SharedRows>& rows, bool has_wide_outputs) {
    (void)anchor;
    remember(ctx, {weight, bias});
    ctx->saved_data["in_out"] = order == WeightOrder::InOut;
    ctx->saved_data["cut"] = static_cast<int64_t>(cut);
    if (rows) ctx->saved_data["rows"] = c10::IValue::make_capsule(rows);
    if (weight->trainable()) ctx->save_for_backward({x});
    const Tensor matrix = out_in(weight->value(), order).t();
    if (cut == TpLinear::Row) {
      Tensor y = rows->summed_product(x, matrix)();
      return bias ? y.add_(bias->value()) : y;
    }
    const Tensor added = bias ? bias->value() : Tensor();
    if (cut == TpLinear::Column) return rows->gather_to_multiply(x)(matrix, added).product;
    if (has_wide_outputs) {
      Tensor y = wide_product(x, matrix);
      return bias ? y.add_(added) : y;
    }
    return bias ? biased_product(added, x, matrix) : product(x, matrix);
  }

  // Collectives overlap with GEMMs that do not need their rows: the gather of x with the GEMM of
  // dx, the sum of dx with that of the weight's gradient, chunks with the GEMMs of other chunks.
  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const auto order =
        ctx->saved_data.at("in_out").toBool() ? WeightOrder::InOut : WeightOrder::OutIn;
    const auto cut = static_cast<TpLinear>(ctx->saved_data.at("cut").toInt());
    c10::intrusive_ptr<SharedRows> rows;
    if (cut != TpLinear::None)
      rows = c10::static_intrusive_pointer_cast<SharedRows>(ctx->saved_data.at("rows").toCapsule());
    Parameter* weight = recall(ctx, 0);
    Parameter* bias = recall(ctx, 1);
    const Tensor dy_here = outputs[0].to(weight->value().scalar_type()).contiguous();
    const bool makes_dx = ctx->needs_input_grad(0);
    ArrivingRows x_coming, dy_coming, dx_coming;
    ArrivingProduct both_coming;
    if (cut == TpLinear::Row) {
      if (makes_dx)
        both_coming = rows->gather_to_multiply(dy_here);
      else
        dy_coming = rows->gather(dy_here);
    }
    if (cut == TpLinear::Column && weight->trainable())
      x_coming = rows->gather(ctx->get_saved_variables()[0]);
    if (bias && bias->trainable()) add_bias_gradient(*bias, dy_here);
    Tensor dy = dy_coming ? dy_coming() : dy_here, dx;
    int chunks = 1;
    if (makes_dx) {
      const Tensor matrix = out_in(weight->value(), order);
      if (both_coming) {
        GatheredProduct both = both_coming(matrix, {});
        dx = std::move(both.product);
        dy = std::move(both.rows);
        chunks = both.chunks;
      } else if (cut == TpLinear::Column) {
        dx_coming = rows->summed_product(dy, matrix);
      } else {
        dx = product(dy, matrix);
      }
    }
    if (weight->trainable()) {
      Tensor x = x_coming ? x_coming() : ctx->get_saved_variables()[0];
      if (chunks > 1) x = rows->in_chunks(x, chunks);
      // Deferred gradients need copies of gathered rows, whose buffer the next function takes.
      if (weight->deferred() && rows && rows->are_sharded())
        (cut == TpLinear::Column ? x : dy) = (cut == TpLinear::Column ? x : dy).clone();
      add_weight_gradient(*weight, order, x, dy);
    }
    return {dx_coming ? dx_coming() : dx, {}, {}, {}, {}, {}, {}, {}};
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
    const Tensor values = table->value().flatten(0, -2);
    Tensor sum = values.index_select(0, rows.select(1, 0)).mul_(shares.narrow(1, 0, 1));
    for (int64_t i = 1; i < rows.size(1); ++i)
      sum.addcmul_(values.index_select(0, rows.select(1, i)), shares.narrow(1, i, 1));
    return sum;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    Tensor gradient = recall(ctx, 0)->gradient().flatten(0, -2);
    const Tensors saved = ctx->get_saved_variables();
    for (int64_t i = 0; i < saved[0].size(1); ++i)
      gradient.index_add_(0, saved[0].select(1, i),
                          outputs[0].mul(saved[1].narrow(1, i, 1)).to(gradient.scalar_type()));
    return {{}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, Parameter& weight, Parameter* bias, WeightOrder order,
                  TpLinear cut, const c10::intrusive_ptr<SharedRows>& rows, bool has_wide_outputs) {
  return LinearFunction::apply(x, weight.anchor(), &weight, bias, order, cut, rows,
                               has_wide_outputs);
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
