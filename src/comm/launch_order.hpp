// SPDX-License-Identifier: Apache-2.0
// Checks that the communicators of a GPU cannot deadlock. NCCL starts their kernels in launch order
// (NCCL_LAUNCH_ORDER_IMPLICIT), which is the same on all ranks of a stage group, so that no kernel
// waits for one that cannot start. Before CUDA 12.3 kernels run one after the other, and two stages
// that send to each other in different orders would wait forever.
#pragma once

#include <string>

namespace zea {

/// Versions as the libraries number them: NCCL 2.26.2 is 22602, CUDA 12.3 is 12030.
struct LaunchVersions {
  int nccl = 0, cuda_runtime = 0, cuda_driver = 0;
  int built_nccl = 0, built_cuda = 0;  ///< those that this build knew
  /// Whether NCCL_LAUNCH_ORDER_IMPLICIT is on.
  bool in_program_order = true;
  /// Whether NCCL_GRAPH_MIXING_SUPPORT is: graphs and other calls share communicators.
  bool mixes_graphs = true;
};

/// Returns the versions of this process; zeros in a build without NCCL.
LaunchVersions launch_versions();

/// "2.26" of 22602, and "12.3" of 12030.
std::string nccl_text(int version);
std::string cuda_text(int version);

/// The communicators of a GPU that may run at the same time.
enum class CallOrder {
  OneCommunicator,  ///< never two of them
  SameOnAllRanks,   ///< several, and all ranks make their calls in the same order
  OfEachRank,       ///< several, and ranks that meet make theirs in orders of their own
};

/// Returns why communicators would deadlock, as a sentence with what was found and what to do;
/// empty if they cannot.
std::string launch_order_fault(const LaunchVersions& versions, CallOrder order);

}  // namespace zea
