// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "zea/plan/plan.hpp"

namespace zea::detail {

/// Where what a place holds is beyond mesh.memory_mib, modules that leave it open are gathered for
/// each use.
Plan gathered_within(const Plan& plan);

}  // namespace zea::detail
