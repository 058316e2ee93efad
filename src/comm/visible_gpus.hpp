// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zea {

// Facts that the system has about a device by its PCI address ("0000:1b:00.0").

/// The folder of these facts; tests use another one.
inline constexpr const char* kPciDevices = "/sys/bus/pci/devices";

/// Whether this process may use a core that is near the device according to the system; true if
/// unknown.
bool is_near_device(const std::string& address, const std::string& devices = kPciDevices);

/// The link between a device and the host, its current and its possible rate; zeros if unknown.
struct PciLink {
  double speed = 0, most_speed = 0;  ///< GT/s of a lane
  int lanes = 0, most_lanes = 0;

  /// Returns the fraction of the possible rate that the link has; 1 if unknown.
  double share() const;
};
PciLink pci_link(const std::string& address, const std::string& devices = kPciDevices);

// The GPUs that a process may use, and the assignment of GPUs to the ranks of a node. A launcher
// may show every rank all GPUs of its node (--gpu-bind=none), those near its cores
// (--gpu-bind=closest) or one (--gpus-per-task=1), each time numbered from 0; so GPUs are
// identified by PCI address and UUID.

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

/// Returns the GPU of each rank of a node, as an index into the GPUs that the rank sees; -1 for a
/// rank for which none is left. At most `ranks_per_gpu` ranks get the same GPU, and several only if
/// all GPUs that a rank sees, near and far, are taken. Otherwise as many ranks as possible get a
/// near GPU, and ranks that see the same GPUs take them in order.
std::vector<int> deal_gpus(const std::vector<std::vector<VisibleGpu>>& seen_by_rank,
                           int64_t ranks_per_gpu = 1);

/// NCCL refuses ranks of one node that share a GPU: where any do, each becomes a node of its own.
void set_nccl_host_id(int local_rank);

}  // namespace zea
