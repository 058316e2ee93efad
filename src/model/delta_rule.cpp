// SPDX-License-Identifier: Apache-2.0
#include "model/delta_rule.hpp"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/error.hpp"
#include "model/parameter_function.hpp"

namespace zea {
namespace {

using namespace detail;

/// What a row of the in-projection holds, (tokens, heads, dim) and (tokens, heads).
struct DeltaInputs {
  Tensor channels;  ///< (tokens, channels): queries, keys, values
  Tensor gate;      ///< (tokens, value heads, value_dim)
  Tensor strength, decay;
};

DeltaInputs split(const Tensor& x, const DeltaRuleSpec& rule) {
  const int64_t rows = x.size(0), heads = rule.value_heads, group = heads / rule.key_heads;
  if (!rule.by_key_head) {
    const auto parts = x.split_with_sizes({rule.channels(), rule.values(), heads, heads}, 1);
    return {parts[0], parts[1].reshape({rows, heads, rule.value_dim}), parts[2], parts[3]};
  }
  const int64_t values = group * rule.value_dim;
  const Tensor wide = x.narrow(1, 0, 2 * (rule.keys() + rule.values()))
                          .reshape({rows, rule.key_heads, 2 * (rule.key_dim + values)});
  const auto parts = wide.split_with_sizes({rule.key_dim, rule.key_dim, values, values}, 2);
  const Tensor narrow =
      x.narrow(1, x.size(1) - 2 * heads, 2 * heads).reshape({rows, rule.key_heads, 2, group});
  return {at::cat({parts[0].flatten(1), parts[1].flatten(1), parts[2].flatten(1)}, 1),
          parts[3].reshape({rows, heads, rule.value_dim}), narrow.select(2, 0).reshape({rows, heads}),
          narrow.select(2, 1).reshape({rows, heads})};
}

Tensor unit_rows(const Tensor& x) {
  return x * (x.square().sum(-1, true) + 1e-6).rsqrt();
}

/// A sample's outputs, (tokens, values).
Tensor sample_outputs(const Tensor& x, const Tensor& conv, const Tensor& decay, const Tensor& step,
                      const Tensor& norm, const DeltaRuleSpec& rule) {
  const DeltaInputs in = split(x, rule);
  const int64_t rows = x.size(0), group = rule.value_heads / rule.key_heads;
  const Tensor mixed =
      at::silu(at::conv1d(in.channels.t().unsqueeze(0), conv, {}, 1, rule.taps - 1, 1,
                          conv.size(0)))
          .squeeze(0)
          .narrow(1, 0, rows)
          .t();
  const auto parts = mixed.split_with_sizes({rule.keys(), rule.keys(), rule.values()}, 1);
  const auto by_value = [&](const Tensor& heads) {
    return unit_rows(heads.reshape({rows, rule.key_heads, rule.key_dim})).repeat_interleave(group, 1);
  };
  const Tensor q = by_value(parts[0]) / std::sqrt(static_cast<double>(rule.key_dim));
  const Tensor k = by_value(parts[1]);
  const Tensor v = parts[2].reshape({rows, rule.value_heads, rule.value_dim});
  const Tensor b = in.strength.sigmoid();
  const Tensor g = (-decay.exp() * at::softplus(in.decay + step)).exp();
  Tensor state = at::zeros({rule.value_heads, rule.key_dim, rule.value_dim}, x.options());
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < rows; ++t) {
    state = state * g[t].view({-1, 1, 1});
    const Tensor change = (v[t] - (state * k[t].unsqueeze(2)).sum(1)) * b[t].unsqueeze(1);
    state = state + k[t].unsqueeze(2) * change.unsqueeze(1);
    outputs.push_back((state * q[t].unsqueeze(2)).sum(1));
  }
  const Tensor o = at::stack(outputs);
  return (o * (o.square().mean(-1, true) + rule.eps).rsqrt() * norm * at::silu(in.gate)).flatten(1);
}

Tensor all_outputs(const Tensor& x, const TokenScan& tokens, const Tensors& parameters,
                   const DeltaRuleSpec& rule) {
  std::vector<Tensor> outputs;
  for (const Segment& sample : tokens.samples)
    outputs.push_back(sample_outputs(x.narrow(0, sample.start, sample.length), parameters[0],
                                     parameters[1], parameters[2], parameters[3], rule));
  return outputs.empty() ? at::zeros({0, rule.values()}, x.options()) : at::cat(outputs);
}

struct DeltaRuleFunction : Function<DeltaRuleFunction> {
  static Tensor forward(Context* ctx, const Tensor& x, const Tensor& anchor,
                        const TokenScan* tokens, const DeltaParameters& of,
                        const DeltaRuleSpec& rule) {
    (void)anchor;
    remember(ctx, {&of.conv, &of.decay, &of.step, &of.norm});
    ctx->saved_data["tokens"] = reinterpret_cast<int64_t>(tokens);
    ctx->saved_data["rule"] = std::vector<int64_t>{rule.key_heads, rule.value_heads, rule.key_dim,
                                                   rule.value_dim, rule.taps, rule.by_key_head};
    ctx->saved_data["eps"] = rule.eps;
    ctx->save_for_backward({x});
    Tensors parameters;
    for (int i = 0; i < 4; ++i) parameters.push_back(wide(recall(ctx, i)->value()));
    return all_outputs(wide(x), *tokens, parameters, rule).to(x.scalar_type());
  }

  static Tensors backward(Context* ctx, const Tensors& outputs) {
    const at::AutoGradMode records(true);
    const std::vector<int64_t> sizes = ctx->saved_data.at("rule").toIntVector();
    const DeltaRuleSpec rule{sizes[0], sizes[1], sizes[2], sizes[3],
                             sizes[4], ctx->saved_data.at("eps").toDouble(), sizes[5] != 0};
    const Tensor x = ctx->get_saved_variables()[0].detach();
    Tensors leaves{wide(x).detach().requires_grad_()};
    for (int i = 0; i < 4; ++i)
      leaves.push_back(wide(recall(ctx, i)->value()).detach().requires_grad_());
    const auto* tokens = reinterpret_cast<const TokenScan*>(ctx->saved_data.at("tokens").toInt());
    const Tensor y = all_outputs(leaves[0], *tokens, {leaves.begin() + 1, leaves.end()}, rule);
    if (y.numel() == 0) return {at::zeros_like(x), {}, {}, {}, {}};
    const Tensors gradients = torch::autograd::grad({y}, leaves, {outputs[0].to(y.scalar_type())});
    for (int i = 0; i < 4; ++i)
      if (Parameter* parameter = recall(ctx, i); parameter->trainable())
        parameter->gradient().add_(gradients[i + 1]);
    return {gradients[0].to(x.scalar_type()), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor delta_rule(const at::Tensor& x, const TokenScan& tokens,
                      const DeltaParameters& parameters, const DeltaRuleSpec& rule) {
  ZEA_ASSERT(x.size(1) == rule.columns());
  return DeltaRuleFunction::apply(x, parameters.conv.anchor(), &tokens, parameters, rule);
}

}  // namespace zea
