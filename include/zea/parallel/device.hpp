// SPDX-License-Identifier: Apache-2.0
// The device that a rank computes on, and the collectives that reach its memory.
#pragma once

#include <ATen/ATen.h>

#include "zea/comm/mesh.hpp"
#include "zea/plan/plan.hpp"

namespace zea {

/// run.device as this rank's device: "cpu", or "cuda" for the GPU of this rank's place on its node.
/// libtorch's CUDA part is loaded only then, so a machine without CUDA needs none of it. Throws
/// PlanError saying what is missing: this build's NCCL, CUDA's libraries, or a GPU for every rank
/// of the node.
at::Device open_device(DeviceKind kind, int local_rank, int local_size);

/// Throws PlanError where places of the plan's pipeline would wait for each other on this device
/// for ever: on GPUs that run one communicator at a time.
void check_places(const Plan& plan, at::Device device);

/// NCCL for a GPU; on the host shared memory and MPI.
MakeCollectives collectives_of(at::Device device);

}  // namespace zea
