// SPDX-License-Identifier: Apache-2.0
// mesh.layout = "auto": the search for a layout at the start of a run or of its plan.
#pragma once

#include <optional>
#include <string>

#include "deck/hardware.hpp"
#include "estimate/layout_search.hpp"
#include "library/start.hpp"

namespace zea {

/// Ranks of a run, and the hardware that the command line names for its plan.
struct RunRanks {
  int ranks = 1, per_node = 1;
  std::optional<Hardware> hardware = {};  ///< none: as mesh.hardware says
};

/// Gives `start` the fastest layout that fits, where its deck has mesh.layout = "auto" and no
/// layout for so many ranks yet, in the deck itself or in that of the checkpoint; records the
/// choice in mesh.searched_ranks and mesh.searched_keys. Returns what was chosen and why, for
/// people; empty where the deck says the layout. Throws PlanError where no layout fits.
std::string choose_layout(Start& start, const RunRanks& on, const MakeSamples& samples);

}  // namespace zea
