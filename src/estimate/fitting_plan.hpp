// SPDX-License-Identifier: Apache-2.0
// Chooses what to recompute of units in backward, if the deck leaves that to zea: what takes the
// least time per freed byte, until every rank fits into its memory limit.
#pragma once

#include "schedule/plan.hpp"

namespace zea {

/// make_plan() for a run. With model.activation_checkpointing = "auto" it recomputes the fewest
/// multiplications (seconds, if measured) that keep every stage group within mesh.rank_memory_mib,
/// by the estimate of full microbatches. The cost of recomputation is bounded, unlike that of
/// gathering for each use; so modules of a pipeline whose reshard_after_forward is auto are
/// gathered for each use only if recomputing is not enough. All ranks choose alike, whatever their
/// processors. Throws PlanError if the limit cannot be met, in every mode: generation keeps a KV
/// cache (estimate_run()).
Plan make_fitting_plan(const Options& options, const std::string& config_json, int world_size,
                       const std::string& profile = {});

/// The cost of recomputing this of a unit, as a share of its forward.
double recomputed_share(Recompute what);

/// The line of the plan that names the recomputed units and their cost; empty where the deck says
/// which units those are.
std::string describe_recomputation(const Plan& plan);

}  // namespace zea
