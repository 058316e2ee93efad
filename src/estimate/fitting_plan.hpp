// SPDX-License-Identifier: Apache-2.0
// Chooses the units to recompute in backward, if the deck leaves that to zea: those with the least
// time per freed byte, until every rank fits into its memory limit.
#pragma once

#include "schedule/plan.hpp"

namespace zea {

/// make_plan() for a run: with model.activation_checkpointing = "auto" it recomputes as few
/// multiplications (seconds, where they were measured) as keep every stage group within
/// mesh.rank_memory_mib, by the estimate of full microbatches. What that costs is bounded, unlike
/// what is sent to gather for each use: so modules of a pipeline that leave it open do that where
/// recomputing is not enough. All ranks choose alike, whatever their processors. Throws PlanError
/// where the limit cannot be met, in every mode: what is generated keeps keys (estimate_run()).
Plan make_fitting_plan(const Options& options, const std::string& config_json, int world_size,
                       const std::string& profile = {});

/// The line of the plan that names the units and what they cost; empty without the choice.
std::string describe_recomputation(const Plan& plan);

}  // namespace zea
