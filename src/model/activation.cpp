// SPDX-License-Identifier: Apache-2.0
// Pointwise functions: activations, the gated one, and rotary positions. Each keeps only its input,
// and rotary positions not even that.
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "core/error.hpp"
#include "kernels/row_kernels.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

struct GeluFunction : Function<GeluFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const std::optional<Tensor>& anchor,
                        Parameter* bias, Gelu kind) {
    (void)anchor;
    remember(ctx, {bias});
    ctx->saved_data["kind"] = static_cast<int64_t>(kind);
    const Tensor rows = x.contiguous();
    ctx->save_for_backward({rows});
    return gelu_forward(rows, bias ? bias->value() : Tensor(), kind);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    Parameter* bias = recall(ctx, 0);
    const auto kind = static_cast<Gelu>(ctx->saved_data.at("kind").toInt());
    const Tensor dbias = bias && bias->trainable() ? bias->gradient() : Tensor();
    return {gelu_backward(outputs[0].contiguous(), ctx->get_saved_variables()[0],
                          bias ? bias->value() : Tensor(), kind, dbias),
            {},
            {},
            {}};
  }
};

std::optional<Gelu> gelu_of(Activation activation) {
  switch (activation) {
    case Activation::Gelu:
      return Gelu::Erf;
    case Activation::GeluTanh:
      return Gelu::Tanh;
    case Activation::QuickGelu:
      return Gelu::Quick;
    default:
      return {};
  }
}

/// Adds a bias to rows, in place, if no kernel fuses it.
struct AddBiasFunction : Function<AddBiasFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, Parameter* bias) {
    (void)anchor;
    remember(ctx, {bias});
    Tensor sum = x;
    ctx->mark_dirty({sum});
    return sum.add_(bias->value());
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    Parameter* bias = recall(ctx, 0);
    if (bias->trainable()) add_bias_gradient(*bias, outputs[0].contiguous());
    return {outputs[0], {}, {}};
  }
};

struct GatedFunction : Function<GatedFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, Gating gating) {
    const Tensor rows = x.contiguous();
    ctx->save_for_backward({rows});
    ctx->saved_data["gating"] = static_cast<int64_t>(gating);
    return gated_forward(rows, gating);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const auto gating = static_cast<Gating>(ctx->saved_data.at("gating").toInt());
    return {gated_backward(outputs[0].contiguous(), ctx->get_saved_variables()[0], gating), {}};
  }
};

struct ClampedGateFunction : Function<ClampedGateFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const ClampedGate& gate) {
    const Tensor rows = x.contiguous();
    ctx->save_for_backward({rows});
    ctx->saved_data["alpha"] = gate.alpha;
    ctx->saved_data["limit"] = gate.limit;
    return clamped_gate_forward(rows, gate.alpha, gate.limit);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const auto number = [&](const char* name) { return ctx->saved_data.at(name).toDouble(); };
    return {clamped_gate_backward(outputs[0].contiguous(), ctx->get_saved_variables()[0],
                                  number("alpha"), number("limit")),
            {}};
  }
};

struct RotaryFunction : Function<RotaryFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& cosines, const Tensor& sines,
                        int64_t heads, int64_t head_dim, bool of_neighbors) {
    ctx->save_for_backward({cosines, sines});
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["head_dim"] = head_dim;
    ctx->saved_data["of_neighbors"] = of_neighbors;
    ctx->mark_dirty({x});
    rotate_heads(by_head(x, head_dim), cosines, sines, heads, false, of_neighbors);
    return x;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const int64_t heads = ctx->saved_data.at("heads").toInt();
    const Tensor dx = outputs[0].contiguous();
    rotate_heads(by_head(dx, ctx->saved_data.at("head_dim").toInt()), saved[0], saved[1], heads,
                 true, ctx->saved_data.at("of_neighbors").toBool());
    return {dx, {}, {}, {}, {}, {}};
  }

 private:
  static Tensor by_head(const Tensor& x, int64_t head_dim) {
    return x.view({x.size(0), x.flatten(1).size(1) / head_dim, head_dim});
  }
};

}  // namespace

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                  int64_t heads, int64_t head_dim, bool of_neighbors) {
  return RotaryFunction::apply(x, cosines, sines, heads, head_dim, of_neighbors);
}

at::Tensor gated(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::Silu:
      return GatedFunction::apply(x, Gating::Silu);
    case Activation::Gelu:
      return GatedFunction::apply(x, Gating::Gelu);
    case Activation::GeluTanh:
      return GatedFunction::apply(x, Gating::GeluTanh);
    default:
      throw InternalError("unknown gate");
  }
}

at::Tensor clamped_gated(const at::Tensor& x, const ClampedGate& gate) {
  return ClampedGateFunction::apply(x, gate);
}

at::Tensor activate_biased(const at::Tensor& x, Parameter* bias, Activation activation) {
  if (const auto gelu = gelu_of(activation))
    return GeluFunction::apply(x, anchor_of(bias), bias, *gelu);
  const at::Tensor sum = bias ? AddBiasFunction::apply(x, bias->anchor(), bias) : x;
  if (activation == Activation::Relu) return at::relu(sum);
  if (activation == Activation::Silu) return at::silu(sum);
  throw InternalError("unknown activation");
}

}  // namespace zea
