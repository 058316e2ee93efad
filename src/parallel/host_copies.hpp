// SPDX-License-Identifier: Apache-2.0
// Copies between a device and the pinned memory of its host beside what the device computes: each
// way on a stream of its own, so that both ways of the link are used at a time.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace zea {

inline c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

struct HostCopies {
  explicit HostCopies(at::Device device)
      : to_device(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)),
        to_host(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}

  c10::Stream to_device, to_host;
};

/// What `launch` launches goes into `stream`, behind what the current one was given so far. Gives
/// what is reached when it is done.
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

}  // namespace zea
