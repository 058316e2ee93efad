// SPDX-License-Identifier: Apache-2.0
// Properties of a PCI device, read from a made-up tree of the system.
#include "comm/visible_gpus.hpp"

#include <gtest/gtest.h>

#include "comm/node_cores.hpp"
#include "support/made_up_pci.hpp"

namespace zea::test_pci_device {
namespace {

using testing::MadeUpPci;

void expect_link(const MadeUpPci& pci, double share, int lanes) {
  const PciLink link = pci_link(MadeUpPci::kAddress, pci.devices());
  EXPECT_DOUBLE_EQ(link.share(), share);
  EXPECT_EQ(link.lanes, lanes);
}

TEST(PciDevice, IsNearWhereOneOfTheProcessCoresIs) {
  const MadeUpPci pci;
  const int own = own_cores().back();
  const auto is_near = [&](const std::string& list) {
    pci.write("local_cpulist", list);
    return is_near_device(MadeUpPci::kAddress, pci.devices());
  };
  EXPECT_TRUE(is_near(std::to_string(own)));
  EXPECT_TRUE(is_near("90000," + std::to_string(own) + "-" + std::to_string(own + 7)));
  EXPECT_FALSE(is_near("90000-90015,90064-90079"));
  EXPECT_TRUE(is_near("")) << "the system does not say";
}

TEST(PciDevice, OneThatTheSystemDoesNotKnowIsNear) {
  EXPECT_TRUE(is_near_device(MadeUpPci::kAddress, MadeUpPci().devices()));
  EXPECT_TRUE(is_near_device("ffff:ff:1f.7"));
  EXPECT_EQ(pci_link("ffff:ff:1f.7").share(), 1);
}

TEST(PciDevice, LinksAreComparedWithWhatTheyCanBe) {
  const MadeUpPci pci;
  expect_link(pci, 1, 16);
  pci.set_now("32.0 GT/s PCIe", 8);
  expect_link(pci, 0.5, 8);
  pci.set_now("2.5 GT/s PCIe", 16);
  expect_link(pci, 2.5 / 32, 16);
  pci.set_now("Unknown", 0);
  expect_link(pci, 1, 0);
}

TEST(PciDevice, APortThatGivesLessIsNoFaultOfTheLink) {
  const MadeUpPci pci;
  pci.set_port("16.0 GT/s PCIe", 8);
  pci.set_now("16.0 GT/s PCIe", 8);
  expect_link(pci, 1, 8);
  pci.set_now("16.0 GT/s PCIe", 4);
  expect_link(pci, 0.5, 4);
}

}  // namespace
}  // namespace zea::test_pci_device
