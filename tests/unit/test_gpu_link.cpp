// SPDX-License-Identifier: Apache-2.0
// The link of a device is judged while it is used: one that only rests is as fast as it can be.
#include "preflight/gpu_link.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "support/made_up_pci.hpp"

namespace zea::test_gpu_link {
namespace {

using testing::MadeUpPci;

TEST(GpuLink, OneThatRestedIsSeenAtItsBest) {
  const MadeUpPci pci;
  pci.set_now("2.5 GT/s PCIe", 16);
  std::thread use([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    pci.set_now("32.0 GT/s PCIe", 16);
  });
  EXPECT_EQ(link_in_use(MadeUpPci::kAddress, at::kCPU, pci.devices()).share(), 1);
  use.join();
}

TEST(GpuLink, OneThatStaysSlowIsSeenSo) {
  const MadeUpPci pci;
  pci.set_now("32.0 GT/s PCIe", 4);
  const PciLink link = link_in_use(MadeUpPci::kAddress, at::kCPU, pci.devices());
  EXPECT_EQ(link.share(), 0.25);
  EXPECT_EQ(link.most_lanes, 16);
}

}  // namespace
}  // namespace zea::test_gpu_link
