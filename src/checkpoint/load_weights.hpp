// SPDX-License-Identifier: Apache-2.0
// Reads weights into the shards of an engine. Every rank reads the extents that it holds and
// nothing else, so neither memory nor time depends on the size of the whole model. Resuming
// reads the optimizer's state, too, into an engine of any layout and precision.
#pragma once

#include "comm/collectives.hpp"
#include "parallel/engine.hpp"
#include "zea/checkpoint.hpp"
#include "zea/weights.hpp"

namespace zea {

/// Throws one WeightsError that lists every tensor that is missing, has another shape or no
/// floating type, or that the model does not know. The head's matrix of a model with tied
/// embeddings may be there; it is ignored.
void check_tensors(const ModelSpec& model, const WeightsSource& source);

/// Says which frozen modules a plan rounds, as it holds them in types that lack values of the
/// source's, and what follows for checkpoints; empty: none.
std::string describe_rounded(const Plan& plan, const WeightsSource& source);

/// Reads packed values of a frozen parameter in the type that it is `held` in, by way of the
/// type in checkpoints, so that a resumed run has the same bits. Throws as
/// WeightsSource::read().
void read_frozen(const Plan& plan, const WeightsSource& source, const std::string& name,
                 const Shape& shape, const Extent& extent, DType held, void* target);

/// Checks the source, then reads this rank's ranges of all values, converts them to the type
/// that they are held in, and publishes them. Does not communicate: only ranks that see a fault
/// throw, so run it under agree() if the others must know. With model.sync_module_states the
/// ranks of the first replica read, and Engine::broadcast_weights() has to follow. Threads on
/// `cores` share the work.
void load_weights(Engine& engine, const WeightsSource& source, int cores = 1);

/// Reads this rank's ranges of masters and, in runs that train, of optimizer state, and
/// publishes them. Returns the position of the run. State is zero for parameters that the run
/// did not train. Collective over `control`: all ranks throw WeightsError or none does, also if
/// they were given different checkpoints; PlanError if the checkpoint has another optimizer's
/// state. Threads on `cores` share the work.
TrainPosition read_checkpoint(Engine& engine, Collectives& control, const StateSource& source,
                              int cores = 1);

}  // namespace zea
