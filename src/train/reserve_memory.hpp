// SPDX-License-Identifier: Apache-2.0
// Reserves the GPU memory of training steps before the first step. When a GPU runs out of memory,
// the caching allocator returns cached blocks to it: the host waits for the GPU, and therefore for
// NCCL calls that wait for other ranks. In a pipeline, which posts receives one pass ahead, two
// such hosts can deadlock.
#pragma once

#include <string>

#include "parallel/engine.hpp"

namespace zea {

/// The bytes that a rank's steps of so many microbatches of full rows take at most, by the
/// estimate: gpipe keeps the activations of all of them.
struct StepBytes {
  int64_t computing = 0;  ///< on the computing stream, with a tenth more
  int64_t inputs = 0;     ///< on the stream of copies (PrefetchedSteps), whose memory is its own
  int64_t libraries = 0;  ///< not tensors: of CUDA's context and of communicators
};
StepBytes bytes_of_steps(const Plan& plan, int world_rank, int64_t microbatches);

/// Reserves those of the computing stream on this rank's GPU, leaves the others to the device, and
/// restarts the device's peaks. Reserves none on the host, for graphs (run.cuda_graphs), which have
/// memory of their own, and where ranks share a GPU, since each would take what others counted as
/// free. `microbatches`: the most that a replica has in a step. Returns a note if the GPU has less
/// than steps take.
std::string reserve_for_steps(const Engine& engine, int64_t microbatches);

}  // namespace zea
