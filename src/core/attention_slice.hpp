// SPDX-License-Identifier: Apache-2.0
// Slices of attention: the plan cuts rows into slices, kernels compute them.
#pragma once

#include <cmath>
#include <cstdint>

namespace zea {

/// The keys of a slice that its queries see: all of them; or, in a slice of as many keys as
/// queries, query i sees the first i + 1 keys (causal), or all but the first i (the start of a
/// window).
enum class SliceMask : uint8_t { None, Causal, AntiCausal };

/// Queries [query, query + queries) and keys [key, key + keys), counted in tokens.
struct AttentionSlice {
  int64_t query, queries;
  int64_t key, keys;
  SliceMask mask;

  bool operator==(const AttentionSlice&) const = default;
};

/// The scaling of attention scores before the softmax.
struct ScoreSpec {
  double scale = 0;    ///< factor of q.k; 0: 1 / sqrt(head_dim)
  double softcap = 0;  ///< c: c tanh(score / c) (arXiv:2408.00118); 0: none

  double scale_of(int64_t head_dim) const {
    return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }
  bool operator==(const ScoreSpec&) const = default;
};

}  // namespace zea
