// SPDX-License-Identifier: Apache-2.0
// What every rank has to say, as text, known to all of them.
#pragma once

#include <string>
#include <vector>

#include "comm/collectives.hpp"

namespace zea {

/// The text of each rank. Host collectives; collective.
std::vector<std::string> all_gather_texts(Collectives& host, const std::string& text);

}  // namespace zea
