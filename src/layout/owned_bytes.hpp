// SPDX-License-Identifier: Apache-2.0
// What a rank owns of one element of a shard, but for the optimizer's states beside it.
#pragma once

#include "spec/precision.hpp"

namespace zea {

/// In bytes.
struct OwnedBytes {
  /// The master with the copy in the compute type where that is another, or the frozen parameter.
  int64_t parameters = 0;
  int64_t gradients = 0;

  int64_t total() const { return parameters + gradients; }
};

/// `is_read`: by units; what is not is carried.
inline OwnedBytes owned_bytes(const Precision& precision, bool trains, bool is_read) {
  const auto bytes = [](DType dtype) { return static_cast<int64_t>(element_bytes(dtype)); };
  const DType owned = precision.owned(trains, is_read);
  const int64_t copy = is_read && precision.param != owned ? bytes(precision.param) : 0;
  return {.parameters = bytes(owned) + copy, .gradients = trains ? bytes(precision.master) : 0};
}

}  // namespace zea
