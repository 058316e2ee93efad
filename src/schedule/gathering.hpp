// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "schedule/plan.hpp"

namespace zea::detail {

/// Whether what a place holds, activations left out, is beyond mesh.memory_mib.
bool is_beyond_memory(const Plan& plan, size_t place);

/// In a pipeline modules that leave it open are gathered for each use where they stand at a place
/// that is beyond a limit.
Plan gathered_within(const Plan& plan, const std::function<bool(size_t place)>& is_beyond);

}  // namespace zea::detail
