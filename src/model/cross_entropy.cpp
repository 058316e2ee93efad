// SPDX-License-Identifier: Apache-2.0
// The head's linear and the cross entropy of its logits as one function, so that logits exist tile
// by tile (logit_tiles.hpp).
#include <torch/csrc/autograd/custom_function.h>

#include "core/kernel_sizes.hpp"
#include "model/functions.hpp"
#include "model/logit_tiles.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

struct LinearCrossEntropyFunction : Function<LinearCrossEntropyFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, const Tensor& targets,
                        Parameter* weight, double softcap, bool keeps) {
    (void)anchor;
    remember(ctx, {weight});
    ctx->saved_data["softcap"] = softcap;
    KeptLogits kept;
    const RowLogits rows =
        row_logits(x, weight->value(), targets, softcap, keeps ? &kept : nullptr);
    Tensors saved{x, targets, rows.lse};
    saved.insert(saved.end(), kept.begin(), kept.end());
    ctx->save_for_backward(std::move(saved));
    return rows.lse.sub(rows.picked).sum(at::kDouble);
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &targets = saved[1], &lse = saved[2];
    Parameter* weight = recall(ctx, 0);
    const Tensor dx = ctx->needs_input_grad(0) ? at::zeros_like(x) : Tensor();
    const Tensor dweight = weight->trainable() ? weight->gradient() : Tensor();
    add_logit_gradients(x, weight->value(), targets, lse, outputs[0].to(lse.scalar_type()),
                        ctx->saved_data.at("softcap").toDouble(), {dx, dweight},
                        KeptLogits(saved.begin() + 3, saved.end()));
    return {dx, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, Parameter& weight, const at::Tensor& targets,
                                double softcap) {
  const bool has_backward =
      at::GradMode::is_enabled() && (x.requires_grad() || weight.anchor().requires_grad());
  const bool keeps =
      has_backward && keeps_logits(x.size(0), weight.shape()[0], logit_bounds(!x.is_cpu()));
  return LinearCrossEntropyFunction::apply(x, weight.anchor(), targets, &weight, softcap, keeps);
}

}  // namespace zea
