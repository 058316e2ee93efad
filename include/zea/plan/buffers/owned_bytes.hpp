// SPDX-License-Identifier: Apache-2.0
// What a rank owns beside one element of a shard.
#pragma once

#include "zea/plan/buffers/optimizer_spec.hpp"
#include "zea/plan/model/precision.hpp"

namespace zea {

/// In bytes.
struct OwnedBytes {
  /// The master with the copy in the compute type where that is another, or the frozen parameter.
  int64_t parameters = 0;
  int64_t states = 0;  ///< of the optimizer
  int64_t gradients = 0;

  int64_t total() const { return parameters + states + gradients; }
};

/// `is_read`: by units; what is not is carried.
inline OwnedBytes owned_bytes(const Precision& precision, const OptimizerSpec& optimizer,
                              bool trains, bool is_read) {
  const auto bytes = [](DType dtype) { return static_cast<int64_t>(element_bytes(dtype)); };
  const DType owned = precision.owned(trains, is_read);
  const int64_t copy = is_read && precision.param != owned ? bytes(precision.param) : 0;
  return {.parameters = bytes(owned) + copy,
          .states = trains ? optimizer.state_bytes(precision.master) : 0,
          .gradients = trains ? bytes(precision.master) : 0};
}

}  // namespace zea
