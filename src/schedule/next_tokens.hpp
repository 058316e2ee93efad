// SPDX-License-Identifier: Apache-2.0
// The steps of decoding that follow the prompts'.
#pragma once

#include "schedule/step_plan.hpp"

namespace zea {

/// The same samples on the same ranks, a token of each, no items.
StepPlan plan_of_next_tokens(StepPlan prompts);

}  // namespace zea
