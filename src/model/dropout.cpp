// SPDX-License-Identifier: Apache-2.0
// Dropout by masks that are drawn by counting: forward and backward draw the same one.
#include <torch/csrc/autograd/custom_function.h>

#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

struct DropoutFunction : Function<DropoutFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& keys, const Dropout& dropout) {
    ctx->save_for_backward({keys});
    ctx->saved_data["rate"] = dropout.rate;
    ctx->saved_data["stream"] = static_cast<int64_t>(dropout.stream);
    ctx->saved_data["first_column"] = dropout.first_column;
    return drop_elements(x.contiguous(), keys, dropout);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    if (!ctx->needs_input_grad(0)) return {{}, {}, {}};
    const Dropout dropout{ctx->saved_data.at("rate").toDouble(),
                          static_cast<uint64_t>(ctx->saved_data.at("stream").toInt()),
                          ctx->saved_data.at("first_column").toInt()};
    const Tensors saved = ctx->get_saved_variables();
    return {drop_elements(outputs[0].contiguous(), saved[0], dropout), {}, {}};
  }
};

}  // namespace

at::Tensor dropped(const at::Tensor& x, const at::Tensor& keys, const Dropout& dropout) {
  return DropoutFunction::apply(x, keys, dropout);
}

}  // namespace zea
