// SPDX-License-Identifier: Apache-2.0
// The query-key pairs of a slice of attention.
#pragma once

#include "core/attention_slice.hpp"

namespace zea::testing {

/// Whether its `query`-th query sees its `key`-th key.
inline bool sees(const AttentionSlice& slice, int64_t query, int64_t key) {
  return slice.mask == SliceMask::None ||
         (slice.mask == SliceMask::Causal ? key <= query : key >= query);
}

}  // namespace zea::testing
