// SPDX-License-Identifier: Apache-2.0
// Pointwise functions: activations, the gated one, and rotary positions. Each keeps only its input.
#include <torch/csrc/autograd/custom_function.h>

#include "parameter_function.hpp"
#include "zea/core/error.hpp"
#include "zea/model/functions.hpp"

namespace zea {
namespace {

using namespace detail;

// x sigmoid(1.702 x): CLIP's approximation of GELU (arXiv:1606.08415, section 2).
constexpr double kQuickGeluSlope = 1.702;

struct QuickGeluFunction : Function<QuickGeluFunction> {
  static Tensor forward(Context* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    return x.mul(kQuickGeluSlope).sigmoid_().mul_(x);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor x = ctx->get_saved_variables()[0];
    const Tensor gate = x.mul(kQuickGeluSlope).sigmoid_();
    // d/dx = s + a x s (1 - s)
    Tensor slope = gate.mul(x).mul_(1 - gate).mul_(kQuickGeluSlope).add_(gate);
    return {slope.mul_(outputs[0])};
  }
};

struct SwigluFunction : Function<SwigluFunction> {
  static Tensor forward(Context* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    const auto halves = x.chunk(2, -1);
    return at::silu(halves[0]).mul_(halves[1]);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor x = ctx->get_saved_variables()[0];
    const auto halves = x.chunk(2, -1);
    const Tensor& dy = outputs[0];
    Tensor dx = at::empty_like(x);
    dx.narrow(-1, 0, halves[0].size(-1)).copy_(at::silu_backward(dy.mul(halves[1]), halves[0]));
    dx.narrow(-1, halves[0].size(-1), halves[0].size(-1)).copy_(at::silu(halves[0]).mul_(dy));
    return {dx};
  }
};

/// Rotates the first `heads` heads of x by the tables' angles; the rest is copied.
Tensor rotate(const Tensor& x, const Tensor& cosines, const Tensor& sines, int64_t heads) {
  const int64_t half = x.size(2) / 2;
  Tensor y = at::empty_like(x);
  const auto part = [&](const Tensor& t, int64_t begin) {
    return t.narrow(1, 0, heads).narrow(2, begin, half);
  };
  const Tensor first = part(x, 0), second = part(x, half);
  const Tensor cos = cosines.unsqueeze(1), sin = sines.unsqueeze(1);
  part(y, 0).copy_(first.mul(cos).sub_(second.mul(sin)));
  part(y, half).copy_(second.mul(cos).add_(first.mul(sin)));
  const int64_t rest = x.size(1) - heads;
  y.narrow(1, heads, rest).copy_(x.narrow(1, heads, rest));
  return y;
}

struct RotaryFunction : Function<RotaryFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& cosines, const Tensor& sines,
                        int64_t heads) {
    ctx->save_for_backward({cosines, sines});
    ctx->saved_data["heads"] = heads;
    return rotate(x, cosines, sines, heads);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const int64_t heads = ctx->saved_data.at("heads").toInt();
    return {rotate(outputs[0].contiguous(), saved[0], saved[1].neg(), heads), {}, {}, {}};
  }
};

}  // namespace

at::Tensor rotary(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines,
                  int64_t heads) {
  return RotaryFunction::apply(x, cosines, sines, heads);
}

at::Tensor swiglu(const at::Tensor& x) {
  return SwigluFunction::apply(x);
}

at::Tensor activate(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::Gelu:
      return at::gelu(x);
    case Activation::GeluTanh:
      return at::gelu(x, "tanh");
    case Activation::QuickGelu:
      return QuickGeluFunction::apply(x);
    case Activation::Relu:
      return at::relu(x);
    case Activation::Silu:
      return at::silu(x);
  }
  throw InternalError("unknown activation");
}

}  // namespace zea
