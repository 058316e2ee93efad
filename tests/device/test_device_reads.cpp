// SPDX-License-Identifier: Apache-2.0
// Reads of a device by a save: it reads the bytes that are there when it begins, through pinned
// blocks, while the device does other work; the stand-in finds a read that nothing orders.
#include "checkpoint/value_snapshot.hpp"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "device/device.hpp"
#include "device/torch_device.hpp"

namespace zea::testing::test_device_reads {
namespace {

using detail::DeviceReads;

/// More than two blocks, the last one partial; computed by the device.
at::Tensor made_values() {
  const int64_t count = (2 * DeviceReads::kBlockBytes + 40) / 4;
  return at::arange(count, at::kFloat).to(stand_in_device()).mul(2);
}

void expect_values(const at::Tensor& read, int64_t first) {
  const at::Tensor expected = at::arange(first, first + read.numel(), at::kFloat).mul(2);
  EXPECT_TRUE(at::equal(read, expected));
  EXPECT_TRUE(device().take_faults().empty());
}

TEST(DeviceReads, GiveWhatWasMade) {
  const at::Tensor values = made_values();
  DeviceReads reads(stand_in_device());
  for (const int64_t first : {int64_t{0}, int64_t{3}, values.numel() - 1, values.numel()}) {
    at::Tensor read = at::zeros({values.numel() - first});
    reads.read(values, 4 * first, 4 * read.numel(), static_cast<char*>(read.data_ptr()));
    expect_values(read, first);
  }
}

TEST(DeviceReads, GoOnBesideWhatTheDeviceComputes) {
  const at::Tensor values = made_values();
  DeviceReads reads(stand_in_device());
  const std::shared_ptr<Mark> is_over = device().compute().hold();
  const int64_t held = device().times_held();
  at::Tensor read = at::zeros({values.numel()});
  reads.read(values, 0, 4 * read.numel(), static_cast<char*>(read.data_ptr()));
  EXPECT_EQ(device().times_held() - held, 3);  // blocks, by themselves into pinned memory
  is_over->reach();
  expect_values(read, 0);
}

TEST(DeviceReads, WithoutTheirEventAreFound) {
  const at::Tensor values = made_values();
  const at::Device place = stand_in_device();
  const c10::StreamGuard guard(
      c10::impl::VirtualGuardImpl(place.type()).getStreamFromGlobalPool(place));
  values.cpu();
  const std::vector<std::string> faults = device().take_faults();
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults[0].find("no event orders them"), std::string::npos) << faults[0];
}

}  // namespace
}  // namespace zea::testing::test_device_reads
