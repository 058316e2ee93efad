// SPDX-License-Identifier: Apache-2.0
// Counts the bytes of all host tensors while it lives: it stands in front of libtorch's allocator,
// which libtorch keeps as the one of the process. What a plan predicts is compared with it.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>
#include <memory>

namespace zea {

class TensorBytes {
 public:
  TensorBytes();
  ~TensorBytes();
  TensorBytes(const TensorBytes&) = delete;
  TensorBytes& operator=(const TensorBytes&) = delete;

  int64_t now() const;
  int64_t peak() const;
  /// The peak counts from here.
  void reset_peak();

 private:
  class CountingAllocator;
  std::unique_ptr<CountingAllocator> allocator_;
  c10::Allocator* before_;
};

}  // namespace zea
