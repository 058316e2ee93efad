// SPDX-License-Identifier: Apache-2.0
#include "kernels/delta_rule.hpp"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>

#include "kernels/delta_chunks.hpp"
#include "kernels/delta_functors.hpp"
#include "kernels/delta_run.hpp"
#include "kernels/run_items.hpp"

namespace zea {
namespace {

using detail::elements;
using detail::run_items;
using detail::Wide;
using detail::with_element_type;

at::TensorOptions wide_options_of(const at::Tensor& x) {
  return x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

template <class T>
detail::ConvolveHead<T> convolution(const at::Tensor& x, const at::Tensor& starts,
                                    const at::Tensor& conv, const DeltaShape& shape) {
  return {elements<T>(x), elements<T>(conv), elements<int64_t>(starts), shape};
}

/// The convolution's weight as (taps, channels).
at::Tensor by_tap(const at::Tensor& conv) {
  return conv.flatten(1).t().contiguous();
}

at::Tensor mixed_rows(const at::Tensor& x, const at::Tensor& starts, const DeltaWeights& weights,
                      const at::Tensor& conv, const DeltaShape& shape) {
  const at::Tensor mixed = at::empty(x.sizes(), wide_options_of(x));
  with_element_type(x, [&]<class T>(T) {
    const detail::MixDeltaToken<T> functor{convolution<T>(x, starts, conv, shape),
                                           elements<T>(weights.decay), elements<T>(weights.step),
                                           elements<Wide<T>>(mixed)};
    run_items(x, functor, x.size(0) * (shape.heads() + 1), shape.value_dim);
  });
  return mixed;
}

at::Tensor gated_norms(const at::Tensor& o, const at::Tensor& x, const DeltaWeights& weights,
                       const DeltaShape& shape) {
  const at::Tensor y = at::empty_like(o);
  with_element_type(x, [&]<class T>(T) {
    const detail::GatedNormHead<T> functor{elements<T>(o), elements<T>(x),
                                           elements<T>(weights.norm), elements<T>(y), shape};
    run_items(x, functor, x.size(0) * shape.value_heads, shape.value_dim);
  });
  return y;
}

/// Items of which one sum is made: on a device in as many parts as keep all of it busy.
int64_t items_per_sum(const at::Tensor& x, int64_t items, int64_t width) {
  constexpr int64_t kMostParts = 2048, kLeastItems = 4;
  if (x.is_cpu()) return rows_per_sum(width);
  return std::max(kLeastItems, (items + kMostParts - 1) / kMostParts);
}

int64_t parts_of_items(int64_t items, int64_t each) {
  return (items + each - 1) / each;
}

/// Terms that are added to gradients of parameters at once.
struct Additions {
  std::vector<at::Tensor> gradients, terms;

  void add(const at::Tensor& gradient, const at::Tensor& term) {
    gradients.push_back(gradient);
    terms.push_back(term);
  }
  void apply() const {
    if (!terms.empty()) at::_foreach_add_(gradients, terms);
  }
};

/// The gradients of outputs before the norm; those of gates go to dx.
at::Tensor norm_gradients(const at::Tensor& dy, const at::Tensor& x, const DeltaOutputs& outputs,
                          const DeltaWeights& weights, const DeltaShape& shape,
                          const at::Tensor& gradient, const at::Tensor& dx, Additions& additions) {
  const at::Tensor d_o = at::empty(dy.sizes(), wide_options_of(x));
  const int64_t heads = x.size(0) * shape.value_heads;
  const int64_t step = items_per_sum(x, heads, shape.value_dim);
  const at::Tensor sums =
      at::empty({parts_of_items(heads, step), shape.value_dim}, wide_options_of(x));
  with_element_type(x, [&]<class T>(T) {
    const detail::GatedNormBackward<T> functor{elements<T>(dy),
                                               elements<T>(outputs.mixed),
                                               elements<T>(x),
                                               elements<T>(weights.norm),
                                               elements<Wide<T>>(d_o),
                                               elements<T>(dx),
                                               elements<Wide<T>>(sums),
                                               shape,
                                               heads,
                                               step};
    run_items(x, functor, sums.size(0), (x.is_cpu() ? step : 1) * shape.value_dim);
  });
  if (gradient.defined()) additions.add(gradient, sums.sum(0));
  return d_o;
}

/// From the gradients of what mixed_rows() makes to those of x and the parameters.
void mix_gradients(const at::Tensor& dmixed, const at::Tensor& spare, const at::Tensor& x,
                   const at::Tensor& starts, const DeltaWeights& weights, const at::Tensor& conv,
                   const DeltaShape& shape, const DeltaGradients& gradients, const at::Tensor& dx,
                   Additions& additions) {
  const int64_t step = items_per_sum(x, x.size(0) * shape.heads(), shape.value_dim);
  const int64_t parts = parts_of_items(x.size(0), step);
  const at::Tensor sums = at::empty({parts, shape.taps, shape.channels()}, dmixed.options());
  const at::Tensor scratch = at::empty({parts, shape.channels()}, dmixed.options());
  with_element_type(x, [&]<class T>(T) {
    const detail::MixDeltaTokenBackward<T> to_convolution{convolution<T>(x, starts, conv, shape),
                                                          elements<T>(weights.decay),
                                                          elements<T>(weights.step),
                                                          elements<Wide<T>>(dmixed),
                                                          elements<Wide<T>>(spare),
                                                          elements<T>(dx)};
    run_items(x, to_convolution, x.size(0) * (shape.heads() + 1), 2 * shape.value_dim);
    const detail::ConvolveBackward<T> to_inputs{elements<T>(x),
                                                elements<T>(conv),
                                                elements<int64_t>(starts),
                                                elements<Wide<T>>(dmixed),
                                                elements<T>(dx),
                                                elements<Wide<T>>(sums),
                                                elements<Wide<T>>(scratch),
                                                shape,
                                                x.size(0),
                                                step};
    run_items(x, to_inputs, parts * shape.heads(), (x.is_cpu() ? step : 1) * shape.value_dim);
  });
  if (gradients.conv.defined()) {
    const at::Tensor sum = at::empty({shape.channels(), shape.taps}, sums.options());
    at::Tensor by_tap = sum.t();
    at::sum_out(by_tap, sums, 0);
    additions.add(gradients.conv, sum.view_as(gradients.conv));
  }
  if (!gradients.decay.defined() && !gradients.step.defined()) return;
  const int64_t heads = shape.value_heads, groups = shape.by_key_head ? shape.key_heads : 1;
  const at::Tensor both =
      dmixed.narrow(1, dmixed.size(1) - 2 * heads, 2 * heads).sum(0).view({groups, 2, -1});
  if (gradients.decay.defined()) additions.add(gradients.decay, both.select(1, 0).reshape({heads}));
  if (gradients.step.defined()) additions.add(gradients.step, both.select(1, 1).reshape({heads}));
}

}  // namespace

DeltaOutputs delta_rule_forward(const at::Tensor& x, const DeltaTokens& tokens,
                                const DeltaWeights& weights, const DeltaShape& shape,
                                const at::Tensor& last) {
  ZEA_ASSERT(x.is_contiguous() && x.size(1) == shape.columns());
  ZEA_ASSERT(!tokens.bounds.empty() && tokens.bounds.back() == x.size(0));
  const int64_t states = detail::kept_states(tokens.bounds);
  DeltaOutputs out{.y = {},
                   .mixed = at::empty({x.size(0), shape.values()}, x.options()),
                   .states = at::empty({states, shape.value_heads, shape.key_dim, shape.value_dim},
                                       wide_options_of(x))};
  {
    const at::Tensor mixed = mixed_rows(x, tokens.starts, weights, by_tap(weights.conv), shape);
    detail::scan_chunks({mixed, tokens, shape}, out.mixed, out.states, {{}, last});
  }
  out.y = gated_norms(out.mixed, x, weights, shape);
  return out;
}

at::Tensor delta_rule_step(const at::Tensor& x, const at::Tensor& inputs, const at::Tensor& states,
                           const DeltaWeights& weights, const DeltaShape& shape) {
  const int64_t samples = x.size(0), taps = shape.taps;
  const at::Tensor rows = at::cat({inputs, x.unsqueeze(1)}, 1).flatten(0, 1);
  const at::Tensor starts =
      at::arange(samples, x.options().dtype(at::kLong)).mul_(taps).repeat_interleave(taps);
  const at::Tensor mixed = mixed_rows(rows, starts, weights, by_tap(weights.conv), shape)
                               .view({samples, taps, -1})
                               .select(1, taps - 1)
                               .contiguous();
  DeltaTokens tokens;
  for (int64_t sample = 0; sample <= samples; ++sample) tokens.bounds.push_back(sample);
  tokens.chunks = chunk_table(tokens.bounds).to(x.device());
  const at::Tensor o = at::empty({samples, shape.values()}, x.options());
  detail::scan_chunks({mixed, tokens, shape}, o, {}, {states, states});
  return gated_norms(o, x, weights, shape);
}

at::Tensor delta_rule_backward(const at::Tensor& dy, const at::Tensor& x, const DeltaTokens& tokens,
                               const DeltaOutputs& outputs, const DeltaWeights& weights,
                               const DeltaShape& shape, const DeltaGradients& gradients) {
  ZEA_ASSERT(dy.is_contiguous());
  const at::Tensor dx = at::empty_like(x), conv = by_tap(weights.conv);
  Additions additions;
  at::Tensor d_o = norm_gradients(dy, x, outputs, weights, shape, gradients.norm, dx, additions);
  const at::Tensor mixed = mixed_rows(x, tokens.starts, weights, conv, shape);
  const at::Tensor dmixed = at::empty_like(mixed);
  detail::scan_chunks_backward({mixed, tokens, shape}, d_o, outputs.states, dmixed);
  d_o.reset();
  mix_gradients(dmixed, mixed, x, tokens.starts, weights, conv, shape, gradients, dx, additions);
  additions.apply();
  return dx;
}

DeltaRunOutputs delta_run_forward(const at::Tensor& x, const DeltaRun& run,
                                  const DeltaWeights& weights, const DeltaShape& shape,
                                  StatePassing& passing) {
  ZEA_ASSERT(x.is_contiguous() && x.size(0) == run.halo + run.tokens);
  DeltaRunOutputs out;
  {
    const at::Tensor mixed = mixed_rows(x, run.starts, weights, by_tap(weights.conv), shape);
    detail::scan_run(mixed.narrow(0, run.halo, run.tokens), run, shape, x.options(), passing, out);
  }
  out.y = gated_norms(out.mixed, x.narrow(0, run.halo, run.tokens), weights, shape);
  return out;
}

// The rows of the halo have no gradients but those of the convolution's inputs.
at::Tensor delta_run_backward(const at::Tensor& dy, const at::Tensor& x, const DeltaRun& run,
                              const DeltaRunOutputs& outputs, const DeltaWeights& weights,
                              const DeltaShape& shape, const DeltaGradients& gradients,
                              StatePassing& passing) {
  ZEA_ASSERT(dy.is_contiguous());
  const auto of_run = [&](const at::Tensor& rows) { return rows.narrow(0, run.halo, run.tokens); };
  const at::Tensor dx = at::empty_like(x), conv = by_tap(weights.conv);
  dx.narrow(0, 0, run.halo).zero_();
  Additions additions;
  at::Tensor d_o = norm_gradients(dy, of_run(x), {{}, outputs.mixed, {}}, weights, shape,
                                  gradients.norm, of_run(dx), additions);
  const at::Tensor mixed = mixed_rows(x, run.starts, weights, conv, shape);
  const at::Tensor dmixed = at::empty_like(mixed);
  dmixed.narrow(0, 0, run.halo).zero_();
  detail::scan_run_backward(of_run(mixed), run, shape, d_o, outputs, passing, of_run(dmixed));
  d_o.reset();
  mix_gradients(dmixed, mixed, x, run.starts, weights, conv, shape, gradients, dx, additions);
  additions.apply();
  return dx;
}

}  // namespace zea
