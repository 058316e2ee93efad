// SPDX-License-Identifier: Apache-2.0
// What the declaration of a deck's key says.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace zea {

/// What a key's declaration says beyond its type and default, which the member itself carries.
struct KeyInfo {
  const char* name;
  const char* help;                  ///< one sentence; units in it where they are not obvious
  std::vector<std::string> allowed;  ///< for strings: the allowed values; empty allows any
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
};

}  // namespace zea
