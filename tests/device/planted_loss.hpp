// SPDX-License-Identifier: Apache-2.0
// A non-finite loss, planted into a run by its units (TinyRunOptions::run_unit).
#pragma once

#include "model/unit.hpp"

namespace zea::testing {

/// Makes the last of this rank's next `losses_until_fault` losses non-finite; 0: none.
void plant_loss(int64_t losses_until_fault);

/// run_unit(), with the planted loss.
UnitOutput planted_unit(const UnitArguments& call);

}  // namespace zea::testing
