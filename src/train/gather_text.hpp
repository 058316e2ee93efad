// SPDX-License-Identifier: Apache-2.0
// Text of all ranks in one place, for logs and predictions.
#pragma once

#include <string>

#include "comm/collectives.hpp"
#include "core/log.hpp"

namespace zea {

/// The ranks' texts one after another on the root rank; empty elsewhere. Collective.
std::string gather_text(Collectives& control, const std::string& own);

/// Each line a warning of its own.
void warn_of_lines(Log& log, const std::string& lines);

}  // namespace zea
