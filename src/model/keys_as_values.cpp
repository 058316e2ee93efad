// SPDX-License-Identifier: Apache-2.0
// Attention whose keys are its values, too (Gemma 4), before norms and rotary positions.
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/error.hpp"
#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

struct KeysAsValuesFunction : Function<KeysAsValuesFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, int64_t first_key) {
    ctx->saved_data["first_key"] = first_key;
    return at::cat({x, x.narrow(1, first_key, x.size(1) - first_key)}, 1);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensor& dy = outputs[0];
    const int64_t first_key = ctx->saved_data.at("first_key").toInt();
    const int64_t keys = (dy.size(1) - first_key) / 2;
    const Tensor dx = dy.narrow(1, 0, first_key + keys).clone();
    dx.narrow(1, first_key, keys).add_(dy.narrow(1, first_key + keys, keys));
    return {dx, {}};
  }
};

}  // namespace

at::Tensor with_keys_as_values(const at::Tensor& x, int64_t first_key) {
  ZEA_ASSERT(x.dim() == 2 && first_key < x.size(1));
  return KeysAsValuesFunction::apply(x, first_key);
}

}  // namespace zea
