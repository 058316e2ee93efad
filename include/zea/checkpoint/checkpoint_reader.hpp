// SPDX-License-Identifier: Apache-2.0
// Resuming: weights and optimizer state of a run into an engine of any layout and precision.
#pragma once

#include "zea/comm/collectives.hpp"
#include "zea/io/state_source.hpp"
#include "zea/parallel/engine.hpp"

namespace zea {

/// Reads this rank's ranges of masters and, to train on, of optimizer state, and publishes them;
/// returns where the run stood. State is zero for parameters that the run did not train. Collective
/// over `control`: all ranks throw WeightsError or none does, also when they were given different
/// checkpoints; PlanError when another optimizer's state is there.
TrainPosition read_checkpoint(Engine& engine, Collectives& control, const StateSource& source);

}  // namespace zea
