// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>

#include "zea/core/kernel_sizes.hpp"
#include "zea/kernels/matmul.hpp"
#include "zea/model/functions.hpp"
#include "zea/model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

template <class Visit>
void for_chunks(int64_t rows, int64_t vocabulary, Visit visit) {
  const int64_t step = rows_of_logits(vocabulary);
  for (int64_t begin = 0; begin < rows; begin += step) visit(begin, std::min(step, rows - begin));
}

struct LinearCrossEntropyFunction : Function<LinearCrossEntropyFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor, const Tensor& targets,
                        Parameter* weight) {
    (void)anchor;
    remember(ctx, {weight});
    Tensor lse = at::empty({x.size(0)}, wide(x.narrow(0, 0, 0)).options());
    Tensor loss = at::zeros({}, x.options().dtype(at::kDouble));
    for_chunks(x.size(0), weight->shape()[0], [&](int64_t begin, int64_t count) {
      const Tensor logits = wide(product(x.narrow(0, begin, count), weight->value().t()));
      Tensor chunk_lse = logits.logsumexp(-1);
      const Tensor picked =
          logits.gather(1, targets.narrow(0, begin, count).unsqueeze(1)).squeeze(1);
      loss.add_(chunk_lse.sub(picked).sum(at::kDouble));
      lse.narrow(0, begin, count).copy_(chunk_lse);
    });
    ctx->save_for_backward({x, targets, lse});
    return loss;
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const Tensors saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &targets = saved[1], &lse = saved[2];
    Parameter* weight = recall(ctx, 0);
    const bool needs_dx = ctx->needs_input_grad(0);
    Tensor dx = needs_dx ? at::empty_like(x) : Tensor();
    const Tensor scale = outputs[0].to(lse.scalar_type());
    for_chunks(x.size(0), weight->shape()[0], [&](int64_t begin, int64_t count) {
      const Tensor rows = x.narrow(0, begin, count);
      Tensor d = wide(product(rows, weight->value().t()));
      d.sub_(lse.narrow(0, begin, count).unsqueeze(1)).exp_();
      d.scatter_add_(1, targets.narrow(0, begin, count).unsqueeze(1),
                     at::full({count, 1}, -1, d.options()));
      d = d.mul_(scale).to(x.scalar_type());
      if (needs_dx) dx.narrow(0, begin, count).copy_(product(d, weight->value()));
      if (weight->trainable()) add_outer_product(weight->gradient(), d, rows);
    });
    return {dx, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, Parameter& weight, const at::Tensor& targets) {
  return LinearCrossEntropyFunction::apply(x, weight.anchor(), targets, &weight);
}

}  // namespace zea
