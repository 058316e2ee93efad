// SPDX-License-Identifier: Apache-2.0
// The gated delta rule by its definition, token by token and sample by sample, with libtorch's
// gradients.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "layout/visibility.hpp"
#include "spec/module_spec.hpp"

namespace zea {

/// The rule of most tests: two value heads for each key head, dims that fill no packs.
inline constexpr DeltaRuleSpec kSmallDeltaRule{
    .key_heads = 2, .value_heads = 4, .key_dim = 6, .value_dim = 5};

/// Returns samples of such lengths, one after the other.
std::vector<Segment> samples_in_turn(const std::vector<int64_t>& lengths);

/// Values of the parameters: conv (channels, 1, taps), decay (A_log) and step (dt_bias) (value
/// heads), norm (value_dim).
struct DeltaLeaves {
  at::Tensor x;  ///< (tokens, rule.columns())
  at::Tensor conv, decay, step, norm;

  std::vector<at::Tensor*> all() { return {&x, &conv, &decay, &step, &norm}; }
};

/// (tokens, rule.values()).
at::Tensor delta_recurrence(const DeltaLeaves& leaves, const std::vector<Segment>& samples,
                            const DeltaRuleSpec& rule);

/// Random leaves of doubles. Strengths and decays reach from near 0 to near 1.
DeltaLeaves random_delta_leaves(int64_t tokens, const DeltaRuleSpec& rule);

}  // namespace zea
