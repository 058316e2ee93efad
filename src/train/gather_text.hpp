// SPDX-License-Identifier: Apache-2.0
// Text of all ranks in one place, for logs and predictions.
#pragma once

#include <string>

#include "comm/collectives.hpp"
#include "core/log.hpp"

namespace zea {

/// Returns the ranks' texts one after another on the root rank; empty elsewhere. Collective.
std::string gather_text(Collectives& control, const std::string& own);

/// Logs each line as a warning.
void warn_of_lines(Log& log, const std::string& lines);

}  // namespace zea
