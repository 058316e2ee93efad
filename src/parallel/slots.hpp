// SPDX-License-Identifier: Apache-2.0
// Memory of parameters, gradients and optimizer states: owned buffers, and slots that several
// buffers use one after the other.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/collectives.hpp"
#include "schedule/schedule.hpp"

namespace zea {

// Streams for copies between a device and pinned memory of the host, concurrent with computation:
// one per direction, so that both directions of the link are used at a time.

inline c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

struct HostCopies {
  explicit HostCopies(at::Device device)
      : to_device(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
        to_host(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}

  c10::Stream to_device, to_host;
};

/// Runs `launch` with `stream` as the current stream, after the work that the previous one has been
/// given so far. Returns the event that is reached when the work is done.
template <class Launch>
c10::Event launch_beside(c10::Stream stream, Launch&& launch) {
  c10::Event given(stream.device_type()), done(stream.device_type());
  given.record(current_stream(stream.device()));
  given.block(stream);
  const c10::StreamGuard guard(stream);
  launch();
  done.record(stream);
  return done;
}

/// The bytes that buffers of parameters, gradients and optimizer state hold, counted where they are
/// taken and given back. Not resident memory: an exact account that plans and tests compare with.
class Ledger {
 public:
  void take(int64_t bytes, bool shared) {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
    if (shared) shared_ += bytes;
  }
  void give_back(int64_t bytes, bool shared) {
    now_ -= bytes;
    if (shared) shared_ -= bytes;
  }
  int64_t now_bytes() const { return now_; }
  int64_t peak_bytes() const { return peak_; }
  /// Bytes now in memory that ranks share, which no allocator of tensors sees.
  int64_t shared_bytes() const { return shared_; }

 private:
  int64_t now_ = 0;
  int64_t peak_ = 0;
  int64_t shared_ = 0;
};

/// A flat tensor whose bytes are counted in a ledger for as long as it lives.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Ledger& ledger, at::Tensor tensor, bool shared = false);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { release(); }

  const at::Tensor& tensor() const { return tensor_; }
  bool defined() const { return tensor_.defined(); }
  void release();

 private:
  Ledger* ledger_ = nullptr;
  at::Tensor tensor_;
  bool shared_ = false;
};

/// Allocates (elements): on the host in memory that the peers of `reach` can read, collectively
/// over it; ordinary memory if it is null, and on a device.
Buffer allocate_buffer(Ledger& ledger, Collectives* reach, int64_t elements, at::ScalarType dtype,
                       at::Device device);

/// The memory of a plan's slots, for the gathered parameters or unreduced gradients of a few units
/// at a time. It is allocated once: reused memory is faster to fill than fresh, and peers can reach
/// it in place.
class Slots {
 public:
  /// `reach` gives the memory where not null (on the host only); constructing is then collective
  /// over it.
  Slots(const SlotPlan& plan, Ledger& ledger, Collectives* reach, at::Device device);

  /// Returns the slot of `buffer`, which must be free: (elements) of any content.
  at::Tensor take(int buffer, int64_t elements, at::ScalarType dtype);
  /// Frees the slot of `buffer`. On a device its next user waits for `read`, if not null.
  void give_back(int buffer, std::shared_ptr<c10::Event> read = nullptr);
  /// The buffer that has the slot of `buffer`; -1: none.
  int holder(int buffer) const { return holders_[plan_.slot_of_buffer[buffer]]; }

 private:
  const SlotPlan& plan_;
  std::vector<Buffer> memory_;                     ///< each slot's, in bytes
  std::vector<int> holders_;                       ///< each slot's buffer; -1: free
  std::vector<std::shared_ptr<c10::Event>> read_;  ///< when each slot's last user has read it
};

}  // namespace zea
