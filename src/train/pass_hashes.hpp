// SPDX-License-Identifier: Apache-2.0
// Hashes of the values that a rank computes in a forward and backward: every unit's outputs, their
// gradients, and the gradients of parameters before they are summed over ranks. Two ranks that
// compute the same part of a step have the same hashes, if neither makes an error.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/engine.hpp"

namespace zea {

enum class HashedValue { Output, OutputGradient, Gradient };

struct ValueHash {
  HashedValue value = HashedValue::Output;
  int index = 0;  ///< of the unit, for HashedValue::Gradient of the buffer
  /// Index in the step; for HashedValue::Gradient the number of earlier sums of the buffer.
  int microbatch = 0;
  int64_t hash = 0;

  bool operator==(const ValueHash&) const = default;
};

/// In the order in which the rank computes them.
using ValueHashes = std::vector<ValueHash>;

/// Observes an engine, which runs the function that observed() returns and calls gradient_reader().
/// Between end() and begin() it observes nothing.
class PassHashes {
 public:
  PassHashes() = default;
  PassHashes(const PassHashes&) = delete;
  PassHashes& operator=(const PassHashes&) = delete;

  /// Returns `run` with hashes. This object must outlive the engine that runs it.
  RunUnit observed(RunUnit run);
  ReadGradient gradient_reader();

  /// Begins a pass over these microbatches, which outlive it.
  void begin(const std::vector<Microbatch>& microbatches);
  ValueHashes end();

 private:
  void add(HashedValue value, int index, int microbatch, const at::Tensor& values);

  const std::vector<Microbatch>* microbatches_ = nullptr;  ///< null: no pass is observed
  std::vector<int> sums_;                                  ///< of each buffer so far
  ValueHashes hashes_;                ///< records whose hashes the device may still compute
  std::vector<at::Tensor> computed_;  ///< the hash of each record, an int64 scalar
};

}  // namespace zea
