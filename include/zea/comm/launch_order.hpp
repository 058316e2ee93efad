// SPDX-License-Identifier: Apache-2.0
// Whether the communicators of a GPU run side by side. NCCL starts their kernels in the order of
// the program (NCCL_LAUNCH_ORDER_IMPLICIT), so that none waits for one that cannot start; before
// CUDA 12.3 that means one after the other, and two stages that post what they send to each other
// in different orders would wait for ever.
#pragma once

#include <string>

namespace zea {

/// Versions as the libraries number them: NCCL 2.26.2 is 22602, CUDA 12.3 is 12030.
struct LaunchVersions {
  int nccl = 0, cuda_runtime = 0, cuda_driver = 0;
  int built_nccl = 0, built_cuda = 0;  ///< those that this build knew
  /// Whether NCCL_LAUNCH_ORDER_IMPLICIT is on.
  bool in_program_order = true;
};

/// Those of this process; zeros in a build without NCCL.
LaunchVersions launch_versions();

/// "2.26" of 22602, and "12.3" of 12030.
std::string nccl_text(int version);
std::string cuda_text(int version);

/// Why two communicators may not wait for each other, as a sentence with the versions found and
/// needed; empty where they may, or where the user has turned the order off.
std::string launch_order_fault(const LaunchVersions& versions);

}  // namespace zea
