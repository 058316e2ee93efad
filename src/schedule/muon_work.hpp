// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "layout/muon_matrices.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// One rank's share of a part.
struct MuonWork {
  MuonPart part;
  MuonShare share;
};

/// The parts of a rank's buffers that Muon updates, one by one; pieces of tp ranks are joined.
std::vector<MuonWork> muon_work(const Plan& plan, int world_rank);

}  // namespace zea
