// SPDX-License-Identifier: Apache-2.0
// From a deck to the stages of a run and where they stand.
#pragma once

#include "plan/faults.hpp"
#include "zea/plan/plan.hpp"

namespace zea::detail {

/// Sets the costs of the units, the pipeline, and of the mesh its links and tied stages. The plan
/// has its options, model and mesh. Adds a fault where stages cannot be cut as the deck asks.
/// `profile`: measured costs as mesh.profile holds them; empty: none.
void make_pipeline(Faults& faults, Plan& plan, const std::string& profile);

}  // namespace zea::detail
