// SPDX-License-Identifier: Apache-2.0
// From a source of weights into the shards of an engine: every rank reads the extents that it holds
// and nothing else, so neither memory nor time depends on the size of the whole model. Resuming
// reads the optimizer's state, too: of a run into an engine of any layout and precision.
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

/// Which frozen modules a plan rounds, as it holds them in types that have not all values of the
/// source's, and what follows for checkpoints; empty: none.
std::string describe_rounded(const Plan& plan, const WeightsSource& source);

/// Reads values of a parameter that is not trained as they are `held`, packed, by way of the type
/// that checkpoints keep them in: so a run that goes on from one has the same bits. Faults as
/// WeightsSource::read().
void read_frozen(const Plan& plan, const WeightsSource& source, const std::string& name,
                 const Shape& shape, const Extent& extent, DType held, void* target);

/// Checks the source, then reads this rank's ranges of all values, converted to the type that they
/// are held in, and publishes them. Does not communicate: a fault is thrown by the ranks that see
/// it, so run it under agree() where the others must know. With model.sync_module_states the ranks
/// of the first copy of a module read, and Engine::broadcast_weights() has to follow. Threads on
/// `cores` share the work.
void load_weights(Engine& engine, const WeightsSource& source, int cores = 1);

/// Reads this rank's ranges of masters and, to train on, of optimizer state, and publishes them;
/// returns where the run stood. State is zero for parameters that the run did not train. Collective
/// over `control`: all ranks throw WeightsError or none does, also when they were given different
/// checkpoints; PlanError when another optimizer's state is there. Threads on `cores` share the
/// work.
TrainPosition read_checkpoint(Engine& engine, Collectives& control, const StateSource& source,
                              int cores = 1);

}  // namespace zea
