// SPDX-License-Identifier: Apache-2.0
// What the node's system tells of a device by its PCI address ("0000:1b:00.0").
#pragma once

#include <string>

namespace zea {

/// Where it tells that; tests have a tree of their own.
inline constexpr const char* kPciDevices = "/sys/bus/pci/devices";

/// Whether this process may use a core that the system counts among those near the device; true
/// where nothing is known.
bool is_near_device(const std::string& address, const std::string& devices = kPciDevices);

/// The link between a device and the host, now and as far as both of its ends go; zeros where
/// nothing is known.
struct PciLink {
  double speed = 0, most_speed = 0;  ///< GT/s of a lane
  int lanes = 0, most_lanes = 0;

  /// Of what it can give; 1 where nothing is known.
  double share() const;
};
PciLink pci_link(const std::string& address, const std::string& devices = kPciDevices);

}  // namespace zea
