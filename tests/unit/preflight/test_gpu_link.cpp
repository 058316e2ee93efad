// SPDX-License-Identifier: Apache-2.0
// The link of a device is judged while it is used: one that only rests is as fast as it can be.
#include "preflight/measure_nodes.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "support/made_up_pci.hpp"

namespace zea::test_gpu_link {
namespace {

using testing::MadeUpPci;

TEST(GpuLink, OneThatRestedIsSeenAtItsBest) {
  const MadeUpPci pci;
  const std::string device = pci.devices() + "/0000:1b:00.0/";
  const std::string speed = device + "current_link_speed";
  std::filesystem::remove(speed);
  ASSERT_EQ(mkfifo(speed.c_str(), 0600), 0);
  // The first look waits for its answer: then a file for the next is in its place.
  std::thread use([&] {
    std::ofstream first(speed);
    pci.write("next", "32.0 GT/s PCIe");
    std::filesystem::rename(device + "next", speed);
    first << "2.5 GT/s PCIe\n";
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
