// SPDX-License-Identifier: Apache-2.0
// Attention among the tokens of short segments, on the host: a segment's heads are gathered,
// multiplied and scattered in a core's cache, where libtorch's flash kernels would need copies of
// all of them, one GEMM call per head, and segments padded to one length. fp64, fp32, or bf16
// computed in fp32.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace zea {

/// Segments of at most `length` tokens: token `i` of segment `s` is row rows[s * length + i].
struct ShortSegments {
  int64_t length = 0;
  at::Tensor rows;               ///< (segments * length) int64
  std::vector<int64_t> lengths;  ///< of each segment
};

struct AttentionHeads {
  int64_t query = 0, key_value = 0;
  bool causal = false;
};

/// Whether the kernels take tensors like `qkv` and are faster than libtorch's for this length.
bool prefers_short_attention(const at::Tensor& qkv, int64_t length);

/// softmax(q k^T / sqrt(head_dim)) v of qkv (tokens, heads + 2 kv_heads, head_dim), into the
/// segments' rows of y (tokens, heads, head_dim).
void short_attention_forward(const at::Tensor& qkv, const ShortSegments& segments,
                             const AttentionHeads& heads, const at::Tensor& y);

/// Its gradient, into the segments' rows of dqkv; what forward computed is computed again.
void short_attention_backward(const at::Tensor& dy, const at::Tensor& qkv,
                              const ShortSegments& segments, const AttentionHeads& heads,
                              const at::Tensor& dqkv);

}  // namespace zea
