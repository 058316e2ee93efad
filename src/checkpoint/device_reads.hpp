// SPDX-License-Identifier: Apache-2.0
// Copies of a device's memory beside what it computes: on a stream of their own, through two blocks
// of pinned memory, of which one is filled while the other is emptied.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <array>
#include <mutex>

namespace zea::detail {

class DeviceReads {
 public:
  /// Of what this thread's stream of the device was given so far: later work is not waited for.
  explicit DeviceReads(at::Device device);

  /// Copies `count` bytes of contiguous `values` from `first` on to `target`; returns when they are
  /// there. By any thread; nothing may change these bytes meanwhile.
  void read(const at::Tensor& values, int64_t first, int64_t count, char* target);

  static constexpr int64_t kBlockBytes = int64_t{4} << 20;

 private:
  struct Block {
    at::Tensor bytes;
    c10::Event filled;
  };

  std::mutex mutex_;  ///< of what follows
  c10::Stream stream_;
  std::array<Block, 2> blocks_;
};

}  // namespace zea::detail
