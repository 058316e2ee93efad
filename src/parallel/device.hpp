// SPDX-License-Identifier: Apache-2.0
// The device of a rank, and the collectives on its memory.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "comm/launch_order.hpp"
#include "comm/mesh.hpp"
#include "comm/visible_gpus.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// Returns the GPUs that this process may use; none for run.device = "cpu". libtorch's CUDA part is
/// loaded only for "cuda", so a machine without CUDA needs none of it. Throws PlanError if this
/// build's NCCL or CUDA's libraries are missing.
std::vector<VisibleGpu> find_gpus(DeviceKind kind);

/// Returns this rank's device for run.device: "cpu", or its GPU among those that the ranks of its
/// node see (deal_gpus). For run.ranks_per_gpu and run.deterministic it sets environment variables
/// of NCCL, cuBLAS and libtorch, so it must be called before their first use. Throws PlanError if
/// there is no GPU for the rank.
at::Device open_device(const RunOptions& run,
                       const std::vector<std::vector<VisibleGpu>>& seen_on_node, int local_rank);

/// The same for a process that is alone on its node.
at::Device open_device(const RunOptions& run);

/// Returns NCCL's collectives for a GPU; shared memory's and MPI's on the host.
MakeCollectives collectives_of(at::Device device);

// Whether the communicators of a plan can deadlock with these versions of NCCL and CUDA.

/// Returns the reason and a remedy, as a sentence; empty if they cannot deadlock.
std::string launch_order_fault(const Plan& plan, const LaunchVersions& versions);

/// Throws PlanError with that fault for the libraries of this process, if `device` is not the host.
void check_launch_order(const Plan& plan, at::Device device);

}  // namespace zea
