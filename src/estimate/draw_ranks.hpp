// SPDX-License-Identifier: Apache-2.0
// Ranks as a picture: what of each module they hold, tp groups in brackets side by side.
#pragma once

#include <string>
#include <vector>

#include "layout/axis.hpp"

namespace zea::detail {

/// From how many ranks, or nodes, on one of them is drawn in place of a list of all.
inline constexpr int kMostListed = 16;

/// A line for each module, and stage of it, that is on `ranks`, which are of one replica and
/// ascending: "  llm.pp0  [0-7] [8-15]". Long lines and many stages are cut short.
std::string draw_ranks(const MeshShape& shape, const std::vector<int>& ranks);

/// "3", "3-6", "0-2 11-13".
std::string runs_text(const std::vector<int>& ranks);

}  // namespace zea::detail
