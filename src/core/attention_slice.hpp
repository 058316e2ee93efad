// SPDX-License-Identifier: Apache-2.0
// What attention is taken apart into: the plan cuts rows into slices, kernels compute them.
#pragma once

#include <cmath>
#include <cstdint>

namespace zea {

/// Which keys of a slice its queries see: all; or, where there are as many keys as queries, the
/// i-th query the first i + 1 of them, or (what a window begins with) all but the first i.
enum class SliceMask : uint8_t { None, Causal, AntiCausal };

/// Queries [query, query + queries) and keys [key, key + keys), positions among the tokens at hand.
struct AttentionSlice {
  int64_t query, queries;
  int64_t key, keys;
  SliceMask mask;

  bool operator==(const AttentionSlice&) const = default;
};

/// What becomes of the product of a query and a key before the softmax.
struct ScoreSpec {
  double scale = 0;    ///< that it is multiplied by; 0: 1 / sqrt(head_dim)
  double softcap = 0;  ///< c: then c tanh(score / c) (arXiv:2408.00118); 0: it stays as it is

  double scale_of(int64_t head_dim) const {
    return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }
  bool operator==(const ScoreSpec&) const = default;
};

}  // namespace zea
