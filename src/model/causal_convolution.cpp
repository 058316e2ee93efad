// SPDX-License-Identifier: Apache-2.0
// A causal depthwise convolution along the rows of clips that lie one after the other.
#include <torch/csrc/autograd/custom_function.h>

#include "model/functions.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

/// Calls `add(before, tap, is_there)` for each tap: it reads the row `before` rows before another,
/// and `is_there` (rows from `before` on, 1) tells whether this one is of the same clip.
template <class Add>
void for_taps(const Tensor& positions, int64_t taps, const Add& add) {
  for (int64_t before = 0; before < std::min(taps, positions.size(0)); ++before) {
    const Tensor is_there =
        (positions.narrow(0, before, positions.size(0) - before) >= before).unsqueeze(1);
    add(before, taps - 1 - before, is_there);
  }
}

/// The rows from `before` on, and those that lie as many before them.
Tensor later(const Tensor& x, int64_t before) {
  return x.narrow(0, before, x.size(0) - before);
}
Tensor earlier(const Tensor& x, int64_t before) {
  return x.narrow(0, 0, x.size(0) - before);
}

struct CausalConvolutionFunction : Function<CausalConvolutionFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor,
                        const Tensor& positions, Parameter* weight) {
    (void)anchor;
    remember(ctx, {weight});
    ctx->save_for_backward({x, positions});
    const Tensor rows = wide(x), taps = wide(as_matrix(weight->value()));
    const Tensor y = at::zeros_like(rows);
    for_taps(positions, taps.size(1), [&](int64_t before, int64_t tap, const Tensor& is_there) {
      later(y, before).add_(earlier(rows, before) * taps.select(1, tap) * is_there);
    });
    return y.to(x.scalar_type());
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    Parameter* weight = recall(ctx, 0);
    const Tensor rows = wide(saved[0]), dy = wide(outputs[0]);
    const Tensor taps = wide(as_matrix(weight->value()));
    const Tensor dx = at::zeros_like(rows);
    for_taps(saved[1], taps.size(1), [&](int64_t before, int64_t tap, const Tensor& is_there) {
      const Tensor of_rows = later(dy, before) * is_there;
      earlier(dx, before).addcmul_(of_rows, taps.select(1, tap));
      if (!weight->trainable()) return;
      const Tensor sums = (of_rows * earlier(rows, before)).sum(0);
      as_matrix(weight->gradient()).select(1, tap).add_(sums);
    });
    return {dx.to(saved[0].scalar_type()), {}, {}, {}};
  }
};

}  // namespace

at::Tensor causal_convolution(const at::Tensor& x, const at::Tensor& positions, Parameter& weight) {
  return CausalConvolutionFunction::apply(x, weight.anchor(), positions, &weight);
}

}  // namespace zea
