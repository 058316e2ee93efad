// SPDX-License-Identifier: Apache-2.0
// Ranks that need not be estimated one by one.
#pragma once

#include "schedule/plan.hpp"

namespace zea::detail {

/// Whether a rank works on the same tokens of every module as the last one before it of which that
/// is not so: its tp ranks in all modules.
bool is_repeated(const Plan& plan, int world_rank);

}  // namespace zea::detail
