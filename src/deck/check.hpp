// SPDX-License-Identifier: Apache-2.0
// What must hold between the keys of a deck, as far as the options alone can tell. parse_deck adds
// these faults to its own, so a deck's faults all come out at once; what depends on the model or
// the ranks is the plan's to check.
#pragma once

#include <string>
#include <vector>

#include "deck/options.hpp"

namespace zea {

/// A rule between keys that `keys` (paths such as "optim.betas", the most telling one first) break.
struct OptionFault {
  std::vector<std::string> keys;
  std::string message;
};

/// Every broken rule, in the order of the sections.
std::vector<OptionFault> check_options(const Options& options);

}  // namespace zea
