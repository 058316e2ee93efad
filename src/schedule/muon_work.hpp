// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "layout/muon_matrices.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// A part as one rank sees it.
struct MuonWork {
  MuonPart part;
  MuonShare share;
};

/// What Muon makes of the buffers that a rank holds, part by part; pieces of tp ranks are joined.
std::vector<MuonWork> muon_work(const Plan& plan, int world_rank);

}  // namespace zea
