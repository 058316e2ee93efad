// SPDX-License-Identifier: Apache-2.0
// RMSNorm and layer norm of rows, alone or of a sum with a residual, and of heads: autograd
// functions around the kernels of row_kernels.hpp.
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "core/error.hpp"
#include "kernels/row_kernels.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

Tensor value_or_none(Parameter* parameter) {
  return parameter ? parameter->value() : Tensor();
}

Tensor gradient_or_none(Parameter* parameter) {
  return parameter && parameter->trainable() ? parameter->gradient() : Tensor();
}

/// Returns the weight of a norm; without a weight one that has no effect.
Tensor weight_of(Parameter* weight, const Tensor& x, double offset) {
  return weight ? weight->value() : at::full({x.size(-1)}, 1 - offset, x.options());
}

/// Returns the bias of a norm; of a layer norm without one zeros.
Tensor bias_of(Parameter* bias, const Tensor& x, bool is_layer) {
  return is_layer && !bias ? at::zeros({x.size(-1)}, x.options()) : value_or_none(bias);
}

/// Returns the gradient of the bias; of a layer norm without one memory that nobody reads. `mean`:
/// as forward saved it.
Tensor bias_gradient_of(Parameter* bias, Parameter* weight, const Tensor& mean) {
  const Tensor of_weight = gradient_or_none(weight);
  return mean.defined() && !bias && of_weight.defined() ? at::zeros_like(of_weight)
                                                        : gradient_or_none(bias);
}

NormRows forward_rows(Context* ctx, const Tensor& x, const Tensor& added, Parameter* weight,
                      Parameter* bias, const NormSpec& spec) {
  ZEA_ASSERT((spec.kind == NormKind::Layer && spec.has_bias) == (bias != nullptr));
  const bool is_layer = spec.kind == NormKind::Layer;
  remember(ctx, {weight, bias});
  ctx->saved_data["eps"] = spec.eps;
  ctx->saved_data["offset"] = spec.offset;
  const NormRows rows = norm_forward(
      x.contiguous(), added.defined() ? added.contiguous() : added,
      {weight_of(weight, x, spec.offset), bias_of(bias, x, is_layer), spec.eps, spec.offset});
  ctx->save_for_backward({rows.x, rows.mean, rows.scale});
  return rows;
}

/// `before`: a gradient of the sum by other ways; may be undefined.
Tensor backward_rows(Context* ctx, const Tensor& dy, const Tensor& before, bool needs_dx) {
  const Tensors saved = ctx->get_saved_variables();
  Parameter* weight = recall(ctx, 0);
  Parameter* bias = recall(ctx, 1);
  const double offset = ctx->saved_data.at("offset").toDouble();
  return norm_backward(
      dy.contiguous(), before.defined() ? before.contiguous() : before,
      {.x = saved[0], .y = {}, .mean = saved[1], .scale = saved[2]},
      {weight_of(weight, saved[0], offset), bias_of(bias, saved[0], saved[1].defined()),
       ctx->saved_data.at("eps").toDouble(), offset},
      {gradient_or_none(weight), bias_gradient_of(bias, weight, saved[1]), needs_dx});
}

struct NormFunction : Function<NormFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const std::optional<Tensor>& anchor,
                        Parameter* weight, Parameter* bias, const NormSpec& spec) {
    (void)anchor;
    return forward_rows(ctx, x, {}, weight, bias, spec).y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    return {backward_rows(ctx, outputs[0], {}, ctx->needs_input_grad(0)), {}, {}, {}, {}};
  }
};

struct NormSumFunction : Function<NormSumFunction> {
  static Tensors forward(Context* ctx, const Tensor& x, const std::optional<Tensor>& added,
                         const Tensor& anchor, Parameter* weight, Parameter* bias,
                         const NormSpec& spec) {
    (void)anchor;
    ctx->set_materialize_grads(false);
    ctx->saved_data["adds"] = added.has_value();
    const NormRows rows = forward_rows(ctx, x, added.value_or(Tensor()), weight, bias, spec);
    return {rows.x, rows.y};
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    Tensor d = outputs[0];
    if (outputs[1].defined()) d = backward_rows(ctx, outputs[1], outputs[0], true);
    return {d, ctx->saved_data.at("adds").toBool() ? d : Tensor(), {}, {}, {}, {}};
  }
};

/// A weight that leaves heads as their norm makes them.
Tensor no_weight(const HeadNormParameters& norm) {
  return at::full_like(norm.key, 1 - norm.offset);
}

struct HeadNormsFunction : Function<HeadNormsFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, Parameter* query,
                        Parameter* key, const HeadNormParameters& norm) {
    (void)anchor;
    remember(ctx, {query, key});
    ctx->saved_data["queries"] = norm.queries;
    ctx->saved_data["keys"] = norm.keys;
    ctx->saved_data["offset"] = norm.offset;
    ctx->saved_data["norms_values"] = norm.value.defined();
    const HeadNorms heads = head_norms_forward(x, norm);
    ctx->save_for_backward({x, heads.scale});
    return heads.y;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    Parameter* query = recall(ctx, 0);
    Parameter* key = recall(ctx, 1);
    HeadNormParameters norm{.query = query->value(),
                            .key = key->value(),
                            .queries = ctx->saved_data.at("queries").toInt(),
                            .keys = ctx->saved_data.at("keys").toInt(),
                            .offset = ctx->saved_data.at("offset").toDouble()};
    if (ctx->saved_data.at("norms_values").toBool()) norm.value = no_weight(norm);
    return {head_norms_backward(outputs[0].contiguous(), saved[0], saved[1], norm,
                                {gradient_or_none(query), gradient_or_none(key)}),
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x;
}

at::Tensor norm(const at::Tensor& x, Parameter* weight, Parameter* bias, const NormSpec& spec) {
  return NormFunction::apply(x, anchor_of(weight), weight, bias, spec);
}

at::Tensor head_norms(const at::Tensor& x, Parameter& query, Parameter& key,
                      const NormedHeads& heads, const NormSpec& spec) {
  ZEA_ASSERT(spec.kind == NormKind::Rms);
  HeadNormParameters norm{query.value(), key.value(), heads.queries,
                          heads.keys,    spec.eps,    spec.offset};
  if (heads.norms_values) norm.value = no_weight(norm);
  return HeadNormsFunction::apply(x.contiguous(), query.anchor(), &query, &key, norm);
}

NormedSum norm_sum(const at::Tensor& x, const at::Tensor& added, Parameter& weight, Parameter* bias,
                   const NormSpec& spec) {
  const auto term = added.defined() ? std::optional(added) : std::nullopt;
  const Tensors both = NormSumFunction::apply(x, term, weight.anchor(), &weight, bias, spec);
  return {both[0], both[1]};
}

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

struct ClampFunction : Function<ClampFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, Parameter* least, Parameter* most) {
    remember(ctx, {least, most});
    ctx->save_for_backward({x});
    return at::clamp(x, least->value(), most->value());
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor x = ctx->get_saved_variables()[0];
    const Tensor inside = (x >= recall(ctx, 0)->value()).logical_and_(x <= recall(ctx, 1)->value());
    return {outputs[0] * inside, {}, {}};
  }
};

constexpr double kMostBound = 3.38e38;  ///< within the ranges of fp32 and bf16

/// Bounds beyond the type's range have no effect.
struct BoundFunction : Function<BoundFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, double bound) {
    ctx->save_for_backward({x});
    ctx->saved_data["bound"] = bound;
    // The library refuses numbers beyond fp32, also for bf16.
    const double most = x.scalar_type() == at::kDouble ? bound : std::min(bound, kMostBound);
    return at::clamp(x, -most, most);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor x = ctx->get_saved_variables()[0];
    const double bound = ctx->saved_data.at("bound").toDouble();
    return {outputs[0] * (x >= -bound).logical_and_(x <= bound), {}};
  }
};

/// Computes in the wide type, since differences of large numbers lose digits.
struct StandardizedFunction : Function<StandardizedFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, double factor, Parameter* shift,
                        Parameter* scale) {
    remember(ctx, {scale});
    ctx->saved_data["factor"] = factor;
    const Tensor y = wide(x) * factor;
    if (shift) y.sub_(shift->value()).mul_(scale->value());
    return y.to(x.scalar_type());
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor dx = wide(outputs[0]) * ctx->saved_data.at("factor").toDouble();
    if (const Parameter* scale = recall(ctx, 0)) dx.mul_(scale->value());
    return {dx.to(outputs[0].scalar_type()), {}, {}, {}};
  }
};

}  // namespace

at::Tensor layer_scale(const at::Tensor& x, Parameter& scale) {
  return LayerScaleFunction::apply(x, scale.anchor(), &scale);
}

at::Tensor clamped(const at::Tensor& x, Parameter& least, Parameter& most) {
  return ClampFunction::apply(x, &least, &most);
}

at::Tensor clamped(const at::Tensor& x, double bound) {
  return BoundFunction::apply(x, bound);
}

at::Tensor standardized(const at::Tensor& x, double factor, Parameter* shift, Parameter* scale) {
  return StandardizedFunction::apply(x, factor, shift, scale);
}

}  // namespace zea
