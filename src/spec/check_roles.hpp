// SPDX-License-Identifier: Apache-2.0
// That a unit's parameters are those that its forward asks for.
#pragma once

#include "spec/model_spec.hpp"

namespace zea::detail {

/// Throws InternalError where the unit's forward asks for a parameter that it does not have, or has
/// one that it does not ask for: a fault of the family that made it.
void check_roles(const ModelSpec& model, const UnitSpec& unit);

}  // namespace zea::detail
