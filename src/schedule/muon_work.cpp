// SPDX-License-Identifier: Apache-2.0
#include "schedule/muon_work.hpp"

#include <utility>

namespace zea {

std::vector<MuonWork> muon_work(const Plan& plan, int world_rank) {
  std::vector<MuonWork> work;
  for (MuonPart& part : muon_parts(plan.model, plan.buffers, plan.shardings, plan.cuts,
                                   plan.param_rules, plan.held_buffers(world_rank))) {
    const int buffer = part.buffers.front();
    const bool joins_all = plan.tp_pieces(buffer) > 1;
    MuonShare share =
        muon_share(part, plan.buffers, plan.shardings[buffer], plan.shard_of(world_rank, buffer),
                   plan.copy_of(world_rank, buffer), joins_all);
    work.push_back({std::move(part), std::move(share)});
  }
  return work;
}

}  // namespace zea
