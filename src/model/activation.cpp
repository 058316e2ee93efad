// SPDX-License-Identifier: Apache-2.0
// Pointwise functions: activations, the gated one, and rotary positions. Each keeps only its input.
#include <torch/csrc/autograd/custom_function.h>

#include "zea/core/error.hpp"
#include "zea/kernels/row_kernels.hpp"
#include "zea/model/functions.hpp"
#include "zea/model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

struct QuickGeluFunction : Function<QuickGeluFunction> {
  static Tensor forward(Context* ctx, const Tensor& x) {
    const Tensor rows = x.contiguous();
    ctx->save_for_backward({rows});
    return quick_gelu_forward(rows);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    return {quick_gelu_backward(outputs[0].contiguous(), ctx->get_saved_variables()[0])};
  }
};

struct SwigluFunction : Function<SwigluFunction> {
  static Tensor forward(Context* ctx, const Tensor& x) {
    const Tensor rows = x.contiguous();
    ctx->save_for_backward({rows});
    return swiglu_forward(rows);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    return {swiglu_backward(outputs[0].contiguous(), ctx->get_saved_variables()[0])};
  }
};

struct RotaryFunction : Function<RotaryFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& cosines, const Tensor& sines,
                        int64_t heads) {
    ctx->save_for_backward({cosines, sines});
    ctx->saved_data["heads"] = heads;
    return rotate_heads(x.contiguous(), cosines, sines, heads, false);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const int64_t heads = ctx->saved_data.at("heads").toInt();
    return {rotate_heads(outputs[0].contiguous(), saved[0], saved[1], heads, true), {}, {}, {}};
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
