// SPDX-License-Identifier: Apache-2.0
// How this program was built, and on what it runs: what a report of a fault should hold.
#pragma once

#include <string>

namespace zea {

/// "0.1.0".
std::string version();
std::string version_text();
/// One line per library, for zea -c.
std::string build_text();

}  // namespace zea
