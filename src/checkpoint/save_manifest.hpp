// SPDX-License-Identifier: Apache-2.0
// How the manifest of a checkpoint comes about: from what each rank says of its own files.
#pragma once

#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "io/manifest.hpp"
#include "schedule/plan.hpp"

namespace zea::detail {

/// Sends `part`, whose files and pieces are set, to rank 0. On it: those of all ranks, in their
/// order, as text; else nothing. Collective.
std::vector<std::string> gather_parts(Collectives& control, const ModelSpec& model,
                                      const Manifest& part);

/// Files and pieces of all parts, with what the plan says of tensors and mesh; run, position and
/// deck are left to be set.
Manifest join_parts(const Plan& plan, const std::vector<std::string>& parts);

}  // namespace zea::detail
