// SPDX-License-Identifier: Apache-2.0
// The gated delta rule by its definition, token by token and sample by sample, with libtorch's
// gradients.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "layout/visibility.hpp"
#include "spec/module_spec.hpp"

namespace zea {

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
