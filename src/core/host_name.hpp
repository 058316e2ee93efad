// SPDX-License-Identifier: Apache-2.0
// The machine that this process runs on, as reports name it.
#pragma once

#include <string>

namespace zea {

std::string host_name();

}  // namespace zea
