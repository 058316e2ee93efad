// SPDX-License-Identifier: Apache-2.0
// Attention over tokens that are distributed over cp ranks: inside inner groups tokens are
// exchanged for heads (arXiv:2309.14509), and keys and values are gathered from, or passed around
// (Ring Attention, arXiv:2310.01889), the outer group. Backward communicates keys again instead of
// saving them, and sends their gradients to their owners.
#pragma once

#include <ATen/ATen.h>

#include "comm/collectives.hpp"
#include "model/attention.hpp"

namespace zea {

/// qkv (tokens of this rank, heads + 2 kv_heads, head_dim) -> (tokens, heads * head_dim); a rank
/// may have no token. Collective over both groups (null: a group of one), and so is its backward;
/// part and groups outlive the graph. The inner group's size divides `heads`, and divides kv_heads
/// or is a multiple of it: then neighbours share a KV head, whose gradient is summed.
at::Tensor context_attention(const at::Tensor& qkv, const ContextPart& part, int64_t heads,
                             int64_t kv_heads, Collectives* inner, Collectives* outer,
                             const AttentionScores& scores = {});

/// Attention without backward of few queries, as of decoding, whose keys stay where they are: the
/// queries of all cp ranks go to each of them, and results are merged by log-sum-exp. `slices` are
/// between the queries of all cp ranks, which have `cp_tokens` each, and the rows of kv of this
/// rank; rank r is member r % inner of inner group r / inner. q (queries here, heads, head_dim) ->
/// (queries here, heads * head_dim). Collective over both groups (null: a group of one).
at::Tensor cached_context_attention(const at::Tensor& q, const at::Tensor& kv,
                                    const std::vector<AttentionSlice>& slices,
                                    const std::vector<int64_t>& cp_tokens, Collectives* inner,
                                    Collectives* outer, const AttentionScores& scores);

}  // namespace zea
