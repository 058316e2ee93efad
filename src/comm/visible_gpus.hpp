// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zea {

// Facts that the system knows of a device by its PCI address ("0000:1b:00.0").

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

  /// Returns the part of the possible rate that the link has; 1 where nothing is known.
  double share() const;
};
PciLink pci_link(const std::string& address, const std::string& devices = kPciDevices);

// The GPUs that a process may use, and which rank of a node takes which. A launcher may show every
// rank all GPUs of its node (--gpu-bind=none), those near its cores (--gpu-bind=closest) or one
// (--gpus-per-task=1), each time numbered from 0; so GPUs are told apart by what they are.

struct VisibleGpu {
  std::string id;       ///< the same for every process of the node
  std::string name;     ///< as its maker calls it
  bool is_near = true;  ///< to the cores that this process may use, as far as the node tells
};

/// In CUDA's order, which cudaSetDevice counts by; empty without NCCL, a driver or a device.
std::vector<VisibleGpu> visible_gpus();

class World;
/// Returns the GPUs that each rank of this node sees, in order of rank. Collective over all ranks.
std::vector<std::vector<VisibleGpu>> gpus_on_node(const World& world,
                                                  const std::vector<VisibleGpu>& own);

/// Bytes of the current device that are free, and all; zeros in a build without NCCL.
struct GpuMemory {
  int64_t free_bytes = 0, bytes = 0;
};
GpuMemory gpu_memory();

/// The GPU of each rank of a node, as an index into what it sees; -1 for a rank for which there is
/// none left. No more than `ranks_per_gpu` have the same one, several only where each of a rank's
/// is taken, far ones, too. Of those that share none as many as can be have one that is near; apart
/// from that, those who see the same take them in order.
std::vector<int> deal_gpus(const std::vector<std::vector<VisibleGpu>>& seen_by_rank,
                           int64_t ranks_per_gpu = 1);

/// NCCL refuses ranks of one node that share a GPU: where any do, each becomes a node of its own.
void stand_alone_for_nccl(int local_rank);

}  // namespace zea
