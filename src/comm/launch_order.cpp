// SPDX-License-Identifier: Apache-2.0
#include "comm/launch_order.hpp"

namespace zea {
namespace {

constexpr int kOrderingNccl = 22600;     // knows NCCL_LAUNCH_ORDER_IMPLICIT
constexpr int kOverlappingCuda = 12030;  // starts a kernel when the one before has started

}  // namespace

std::string nccl_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100);
}

std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version / 10 % 100);
}

std::string launch_order_fault(const LaunchVersions& versions, CallOrder order) {
  if (order == CallOrder::OneCommunicator) return {};
  if (versions.nccl < kOrderingNccl)
    return "NCCL " + nccl_text(versions.nccl) +
           " does not order the communicators of a GPU, so that they may wait for each other for "
           "ever; take NCCL 2.26 or newer";
  if (!versions.in_program_order)
    return "NCCL_LAUNCH_ORDER_IMPLICIT=0 in the environment keeps NCCL from ordering the "
           "communicators of a GPU, so that they may wait for each other for ever; unset it";
  const bool overlap =
      versions.cuda_runtime >= kOverlappingCuda && versions.cuda_driver >= kOverlappingCuda;
  if (order == CallOrder::SameOnAllRanks || overlap) return {};
  return "with the CUDA driver's " + cuda_text(versions.cuda_driver) + " and the CUDA runtime's " +
         cuda_text(versions.cuda_runtime) +
         " a GPU runs its communicators one after the other, so that stages would wait for each "
         "other for ever; take 12.3 or newer of both, which run them side by side";
}

}  // namespace zea
