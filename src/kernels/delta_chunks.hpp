// SPDX-License-Identifier: Apache-2.0
// The recurrence of the gated delta rule in chunks: a thread of the host scans one head at a time,
// a device computes the heads of many chunks at once. MixDeltaToken makes the rows of `mixed`.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/kernel_sizes.hpp"
#include "kernels/delta_rule.hpp"

namespace zea::detail {

/// mixed (tokens, columns) of fp32 or fp64.
struct DeltaRows {
  const at::Tensor& mixed;
  const DeltaTokens& tokens;
  const DeltaShape& shape;
};

/// Returns how many states forward keeps of these samples.
int64_t kept_states(const std::vector<int64_t>& bounds);

/// States (samples, value heads, key_dim, value_dim) before and after each sample; undefined:
/// zeros, and not asked for. Both may be one tensor.
struct SampleStates {
  at::Tensor first, last;
};

/// Writes outputs o (tokens, values), the kept states, and those after samples.
void scan_chunks(const DeltaRows& rows, const at::Tensor& o, const at::Tensor& states,
                 const SampleStates& of_samples);

/// Writes to `dmixed` (as mixed) the gradients of q, k, v, g, and of the betas' logits, given
/// those of the outputs, d_o (tokens, values) of mixed's type. `first`: the states before samples;
/// `last`: the gradients of those after them.
void scan_chunks_backward(const DeltaRows& rows, const at::Tensor& d_o, const at::Tensor& states,
                          const at::Tensor& dmixed, const SampleStates& of_samples = {});

/// The same with many chunks at once, on any device; `states` are in another order.
void scan_batches(const DeltaRows& rows, const at::Tensor& o, const at::Tensor& states,
                  const SampleStates& of_samples);
void scan_batches_backward(const DeltaRows& rows, const at::Tensor& d_o, const at::Tensor& states,
                           const at::Tensor& dmixed, const SampleStates& of_samples = {});

/// Chunks that are computed at once: the step-th ones of some samples, for neighboring steps.
struct ChunkSpan {
  std::vector<int64_t> samples;  ///< those with most chunks first
  int64_t first_step;            ///< a multiple of those between kept states
  std::vector<int64_t> counts;   ///< (steps + 1): samples that have the chunk, and one behind it
  int64_t first_chunk;           ///< in the order of all spans, steps and samples
  int64_t first_state;           ///< of those kept before the span, or in it if it is the first

  int64_t steps() const { return std::ssize(counts) - 1; }
  int64_t chunks() const;
  int64_t end_state() const;  ///< the one after the last state that belongs to the span
};

/// Returns the spans of samples, those of the same ones in order.
std::vector<ChunkSpan> chunk_spans(const std::vector<int64_t>& bounds);

namespace delta {

/// Tokens of a chunk, and chunks between kept states.
inline constexpr int64_t kChunk = kDeltaChunk, kGroupChunks = kDeltaStateTokens / kDeltaChunk;

inline int64_t chunks_of(int64_t tokens) {
  return (tokens + kChunk - 1) / kChunk;
}

/// Calls `visit` with an element of the type of `wide`, fp32 or fp64.
template <class Visit>
void with_wide_type(const at::Tensor& wide, Visit visit) {
  if (wide.scalar_type() == at::kDouble) return visit(double{});
  visit(float{});
}

}  // namespace delta

}  // namespace zea::detail
