// SPDX-License-Identifier: Apache-2.0
// Attention of an inner group's queries to the keys of all inner groups: all gathered at once, or
// one group's keys after the other's as they are passed around the outer group.
#pragma once

#include <ATen/ATen.h>

#include "comm/collectives.hpp"
#include "model/attention.hpp"

namespace zea::detail {

/// q (tokens, heads, dim), and kv (tokens, 2 kv_heads, dim), keys first, in the type that travels;
/// contiguous where keys are passed.
struct GroupInputs {
  at::Tensor q, kv;
  ScoreSpec scores;
};

/// dq, and dkv of the own group's tokens, to be written: of q's type, fp32 for bf16 where keys are
/// passed.
struct GroupGradients {
  at::Tensor dq, dkv;
};

/// Whether the members of the outer group pass keys on.
bool passes_keys(const ContextPart& part);

/// Returns attention to the keys of all members. Collective over `outer`.
AttentionSums attend_group(const ContextPart& part, Collectives& outer, const GroupInputs& in);
/// Writes its gradients. Collective over `outer`.
void write_group_gradients(const ContextPart& part, Collectives& outer,
                           const GroupGradients& gradients, const GroupInputs& in,
                           const at::Tensor& dout, const AttentionSums& sums);

}  // namespace zea::detail
