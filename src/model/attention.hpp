// SPDX-License-Identifier: Apache-2.0
// Attention of the tokens of one module in one microbatch: over all of its keys at once, or over
// slices whose results add up. Which kernel computes it is chosen in attention.cpp.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "kernels/tiled_attention.hpp"
#include "layout/context_plan.hpp"
#include "model/attention_mask.hpp"
#include "model/index_tensor.hpp"
#include "model/parameter.hpp"

namespace zea {

/// The tokens of a group of ranks that exchange tokens for heads.
struct ExchangedTokens {
  explicit ExchangedTokens(const GroupTokens& group) : tokens(group.tokens), order(group.order) {}

  std::vector<int64_t> tokens;  ///< of each member
  IndexList order;              ///< GroupTokens::order
};

/// This rank's part of attention over tokens that are dealt to cp ranks.
struct ContextPart {
  explicit ContextPart(ContextPlan of_rank)
      : plan(std::move(of_rank)),
        masks(plan.slices.begin(), plan.slices.end()),
        inner(plan.inner) {}

  ContextPlan plan;
  /// One for each of ContextPlan::slices; of the whole row where all ranks exchange tokens for
  /// heads.
  std::vector<AttentionMask> masks;
  ExchangedTokens inner;
};

/// How the tokens of a module attend in one of the ways of its blocks (BlockSpec::mixers).
struct TokenAttention {
  /// (cp tokens, pairs), or with RopeConfig::parts (cp tokens, parts, pairs of a part), in the
  /// compute type; undefined: no RoPE.
  at::Tensor rotary_cosines, rotary_sines;
  AttentionMask mask;                  ///< if there is one cp rank
  std::optional<ContextPart> context;  ///< if there are several
};

/// The scores of attention, and its sinks (AttentionSpec::has_sinks), (heads); null: none. Heads
/// attend with the sinks from the first one's on.
struct AttentionScores {
  AttentionScores(const ScoreSpec& of_spec = {}, Parameter* of_heads = nullptr)
      : spec(of_spec), sinks(of_heads) {}

  ScoreSpec spec;
  Parameter* sinks;
  int64_t first_head = 0;
};

/// The kernels that compute attention. Results differ by rounding only.
enum class AttentionKernel {
  Tiled,  ///< our own, on the host: slices as they lie
  Flash,  ///< FlashAttention-2 (arXiv:2307.08691) on packed segments as they lie, with windows
  Cudnn,  ///< cuDNN on segments of one length as they lie
  Dense,  ///< libtorch's for dense attention, a call for each stack of slices
};

/// The kernel for qkv (tokens, heads + 2 kv_heads, head_dim). Counts the shapes that it gives to
/// cuDNN, of which there may be few.
AttentionKernel choose_attention_kernel(const at::Tensor& qkv, const AttentionMask& mask,
                                        int64_t kv_heads, const AttentionScores& scores);

/// Attention among tokens, each of which sees a token. qkv (tokens, heads + 2 kv_heads, head_dim)
/// -> (tokens, heads * head_dim). The mask outlives the graph.
at::Tensor attention(const at::Tensor& qkv, const AttentionMask& mask, int64_t heads,
                     int64_t kv_heads, const AttentionScores& scores = {});

/// Returns attention, without backward, of few queries q (queries, heads, head_dim) to kv (keys,
/// 2 kv_heads, head_dim), keys first, over `slices` without masks. Query heads that share a KV head
/// are computed together.
AttentionSums attend_by_group(const at::Tensor& q, const at::Tensor& kv,
                              std::vector<AttentionSlice> slices, const ScoreSpec& scores);

// Sinks are a key whose value is 0, which every query sees: they scale outputs, and sums with them
// give the gradients of queries, keys and values as sums without them do.

/// Adds the sinks to sums over all keys; `out` is contiguous.
void add_sinks(const AttentionSums& sums, const AttentionScores& scores);
/// Adds the gradient of the sinks; `sums` are those that add_sinks() left.
void add_sink_gradients(const AttentionScores& scores, const at::Tensor& dout,
                        const AttentionSums& sums);

/// Returns sums over no key.
AttentionSums no_attention(const at::Tensor& q);
/// Returns memory for sums that write_attention() fills: `out` in q's type, or in fp32 for bf16.
AttentionSums unwritten_sums(const at::Tensor& q);
AttentionSums unwritten_wide_sums(const at::Tensor& q);

/// Writes the sums over the keys of the mask's slices, in which each query sees a key.
void write_attention(const AttentionSums& sums, const AttentionInputs& in,
                     const AttentionMask& mask);
/// Adds the keys of the mask's slices to `sums`.
void add_attention(const AttentionSums& sums, const AttentionInputs& in, const AttentionMask& mask);

/// Writes the gradients through the mask's slices, in which each query sees a key, given the sums
/// over all keys that the queries see. Gradients of keys that no query sees become zero, or stay.
void write_attention_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                               const at::Tensor& dout, const AttentionSums& sums,
                               const AttentionMask& mask);
/// Adds them to `gradients`, which are as wide as `sums.lse`.
void add_attention_gradients(const AttentionGradients& gradients, const AttentionInputs& in,
                             const at::Tensor& dout, const AttentionSums& sums,
                             const AttentionMask& mask);

}  // namespace zea
