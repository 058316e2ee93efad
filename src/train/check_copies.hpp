// SPDX-License-Identifier: Apache-2.0
// Checks that copies of parameters (replicas of a shard, and parameters that tp ranks or pipeline
// stages replicate) have the same bits, before each checkpoint is written. A bit that flips in one
// of them, in memory or in transfer, would otherwise stay there, and no loss would show it.
#pragma once

#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "parallel/engine.hpp"

namespace zea {

/// Throws an Error of ExitCode::SickNode on all ranks if copies of parameters differ in any bit. It
/// names the ranks that differ from the majority, or all if there is none. Collective over
/// `control`, the engine's ranks.
void check_copies(Engine& engine, Collectives& control);

}  // namespace zea
