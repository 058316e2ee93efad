// SPDX-License-Identifier: Apache-2.0
#include "support/delta_recurrence.hpp"

#include <cmath>

namespace zea {
namespace {

using at::Tensor;

/// The parts of rows of the in-projection.
struct Parts {
  Tensor channels;     ///< (tokens, channels): queries, keys, values
  Tensor gate;         ///< (tokens, value heads, value_dim)
  Tensor beta, decay;  ///< (tokens, value heads)
};

Parts parts_of(const Tensor& x, const DeltaRuleSpec& rule) {
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
          parts[3].reshape({rows, heads, rule.value_dim}),
          narrow.select(2, 0).reshape({rows, heads}), narrow.select(2, 1).reshape({rows, heads})};
}

Tensor unit_rows(const Tensor& x) {
  return x * (x.square().sum(-1, true) + 1e-6).rsqrt();
}

Tensor sample_outputs(const DeltaLeaves& leaves, const Tensor& x, const DeltaRuleSpec& rule) {
  const Parts in = parts_of(x, rule);
  const int64_t rows = x.size(0), group = rule.value_heads / rule.key_heads;
  const Tensor mixed = at::silu(at::conv1d(in.channels.t().unsqueeze(0), leaves.conv, {}, 1,
                                           rule.taps - 1, 1, leaves.conv.size(0)))
                           .squeeze(0)
                           .narrow(1, 0, rows)
                           .t();
  const auto parts = mixed.split_with_sizes({rule.keys(), rule.keys(), rule.values()}, 1);
  const auto by_value = [&](const Tensor& heads) {
    return unit_rows(heads.reshape({rows, rule.key_heads, rule.key_dim}))
        .repeat_interleave(group, 1);
  };
  const Tensor q = by_value(parts[0]) / std::sqrt(static_cast<double>(rule.key_dim));
  const Tensor k = by_value(parts[1]);
  const Tensor v = parts[2].reshape({rows, rule.value_heads, rule.value_dim});
  const Tensor b = in.beta.sigmoid();
  const Tensor g = (-leaves.decay.exp() * at::softplus(in.decay + leaves.step)).exp();
  Tensor state = at::zeros({rule.value_heads, rule.key_dim, rule.value_dim}, x.options());
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < rows; ++t) {
    state = state * g[t].view({-1, 1, 1});
    const Tensor change = (v[t] - (state * k[t].unsqueeze(2)).sum(1)) * b[t].unsqueeze(1);
    state = state + k[t].unsqueeze(2) * change.unsqueeze(1);
    outputs.push_back((state * q[t].unsqueeze(2)).sum(1));
  }
  const Tensor o = at::stack(outputs);
  return (o * (o.square().mean(-1, true) + rule.eps).rsqrt() * leaves.norm * at::silu(in.gate))
      .flatten(1);
}

}  // namespace

std::vector<Segment> samples_in_turn(const std::vector<int64_t>& lengths) {
  std::vector<Segment> samples;
  int64_t start = 0;
  for (const int64_t length : lengths) {
    samples.push_back({start, length});
    start += length;
  }
  return samples;
}

Tensor delta_recurrence(const DeltaLeaves& leaves, const std::vector<Segment>& samples,
                        const DeltaRuleSpec& rule) {
  std::vector<Tensor> outputs;
  for (const Segment& sample : samples)
    outputs.push_back(
        sample_outputs(leaves, leaves.x.narrow(0, sample.start, sample.length), rule));
  return at::cat(outputs);
}

DeltaLeaves random_delta_leaves(int64_t tokens, const DeltaRuleSpec& rule) {
  const at::TensorOptions doubles(at::kDouble);
  return {at::randn({tokens, rule.columns()}, doubles),
          at::randn({rule.channels(), 1, rule.taps}, doubles) * 0.5,
          at::rand({rule.value_heads}, doubles) * 4 - 3, at::randn({rule.value_heads}, doubles),
          at::randn({rule.value_dim}, doubles)};
}

}  // namespace zea
