// SPDX-License-Identifier: Apache-2.0
// The memory of steps, taken from a GPU before the first one. An allocation that finds none returns
// cached memory, for which the host waits for the GPU, and so for calls of NCCL that wait for other
// ranks. In a pipeline, which posts receives a pass ahead, two such hosts can wait for each other.
#pragma once

#include <string>

#include "parallel/engine.hpp"

namespace zea {

/// The bytes that a rank's steps of full rows allocate at most, by the estimate and a tenth more.
int64_t bytes_of_steps(const Plan& plan, int world_rank);

/// Reserves them on this rank's GPU; graphs (run.cuda_graphs) have memory of their own, and the
/// host reserves none. Returns a note if the GPU has less.
std::string reserve_for_steps(const Engine& engine);

}  // namespace zea
