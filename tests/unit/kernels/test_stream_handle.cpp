// SPDX-License-Identifier: Apache-2.0
// The handle of a stream with libtorch 2.10, and devices that are not there.
#include <c10/core/DeviceType.h>
#include <c10/core/impl/FakeGuardImpl.h>
#include <gtest/gtest.h>

#include "core/error.hpp"
#include "kernels/launch.hpp"

namespace {

using Devices = c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>;
const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, new Devices);

constexpr int32_t kFaultyDevice = 3;

void* handle_of(c10::StreamId stream, int32_t device) {
  return reinterpret_cast<void*>(100 * (device + 1) + stream);
}

}  // namespace

/// As libtorch_cuda.so has it.
extern "C" int32_t aoti_torch_get_current_cuda_stream(int32_t device, void** handle) {
  *handle =
      handle_of(Devices::getCurrentStreamIdFor(static_cast<c10::DeviceIndex>(device)), device);
  return device == kFaultyDevice ? 1 : 0;
}

namespace zea::testing::test_stream_handle {
namespace {

c10::Stream stream_of(c10::StreamId id, int32_t device) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, index), id);
}

TEST(StreamHandle, IsThatOfTheStreamAndNotOfTheCurrentOne) {
  Devices::resetStreams();
  Devices().exchangeStream(stream_of(7, 1));

  EXPECT_EQ(stream_handle(stream_of(5, 1)), handle_of(5, 1));
  EXPECT_EQ(stream_handle(stream_of(7, 1)), handle_of(7, 1));
  EXPECT_EQ(stream_handle(stream_of(9, 2)), handle_of(9, 2));
}

TEST(StreamHandle, LeavesTheCurrentStreams) {
  Devices::resetStreams();
  Devices().exchangeStream(stream_of(7, 1));

  stream_handle(stream_of(5, 1));
  EXPECT_THROW(stream_handle(stream_of(5, kFaultyDevice)), InternalError);

  EXPECT_EQ(Devices::getCurrentStreamIdFor(1), 7);
  EXPECT_EQ(Devices::getCurrentStreamIdFor(kFaultyDevice), 0);
}

}  // namespace
}  // namespace zea::testing::test_stream_handle
