// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/device_reads.hpp"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

#include "parallel/slots.hpp"

namespace zea::detail {
namespace {

at::Tensor pinned_block() {
  return at::empty({DeviceReads::kBlockBytes},
                   at::TensorOptions().dtype(at::kByte).pinned_memory(true));
}

}  // namespace

DeviceReads::DeviceReads(at::Device device)
    : stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
      blocks_{Block{pinned_block(), c10::Event(device.type())},
              Block{pinned_block(), c10::Event(device.type())}} {
  c10::Event given(device.type());
  given.record(current_stream(device));
  given.block(stream_);
}

void DeviceReads::read(const at::Tensor& values, int64_t first, int64_t count, char* target) {
  const std::lock_guard lock(mutex_);
  const c10::StreamGuard guard(stream_);
  const at::Tensor bytes = values.view(at::kByte);
  const auto size_at = [&](int64_t begin) { return std::min(kBlockBytes, count - begin); };
  const auto fill_from = [&](int64_t begin) {
    Block& block = blocks_[begin / kBlockBytes % 2];
    const at::Tensor from = bytes.narrow(0, first + begin, size_at(begin));
    block.bytes.narrow(0, 0, from.numel()).copy_(from, /*non_blocking=*/true);
    block.filled.record(stream_);
  };
  if (count > 0) fill_from(0);
  for (int64_t begin = 0; begin < count; begin += kBlockBytes) {
    if (begin + kBlockBytes < count) fill_from(begin + kBlockBytes);
    Block& block = blocks_[begin / kBlockBytes % 2];
    block.filled.synchronize();
    std::memcpy(target + begin, block.bytes.const_data_ptr(), static_cast<size_t>(size_at(begin)));
  }
}

}  // namespace zea::detail
