// SPDX-License-Identifier: Apache-2.0
// Copies of parameters (replicas of a shard, and what tp ranks or pipeline stages hold in common)
// have the same bits after every update. A bit that flips in one of them, in memory or on its way,
// stays there, trains on, and no loss shows it. Each checkpoint is checked before it is written.
#pragma once

#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "parallel/engine.hpp"

namespace zea {

/// Throws an Error of ExitCode::SickNode on all ranks where copies of parameters differ in any bit;
/// it names their ranks: those that differ from most, or all if none are most. Collective over
/// `control`, the engine's ranks.
void check_copies(Engine& engine, Collectives& control);

}  // namespace zea
