// SPDX-License-Identifier: Apache-2.0
// What attention is taken apart into: the plan cuts rows into slices, kernels compute them.
#pragma once

#include <cstdint>

namespace zea {

/// Queries [query, query + queries) and keys [key, key + keys), positions among the tokens at hand.
/// Causal: queries == keys, and the i-th query sees the first i + 1 keys.
struct AttentionSlice {
  int64_t query, queries;
  int64_t key, keys;
  bool causal;

  bool operator==(const AttentionSlice&) const = default;
};

}  // namespace zea
