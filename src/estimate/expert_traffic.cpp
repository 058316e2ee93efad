// SPDX-License-Identifier: Apache-2.0
#include "estimate/expert_traffic.hpp"

#include <cmath>
#include <numeric>

#include "layout/collective_volume.hpp"
#include "spec/expert_needs.hpp"

namespace zea::detail {
namespace {

using RankRows = std::vector<int64_t>;

/// The elements of each rank's rows in collectives whose sizes the plan knows.
RankRows travelling_elements(const RankRows& rows, int64_t width) {
  RankRows elements = travelling_rows(rows);
  for (int64_t& count : elements) count *= width;
  return elements;
}

int64_t expected_elements(double rows, int64_t width) {
  return std::llround(rows) * width;
}

}  // namespace

void ExpertGroup::each_axis(const auto& visit) const {
  if (grid.ep_cp > 1)
    visit(Axis::EpCp, rows.cp, rank.cp % grid.ep_cp,
          chosen_share(router, int64_t{grid.ep_cp} * grid.ep_tp));
  if (grid.ep_dp_shard > 1)
    visit(Axis::EpDpShard, rows.replicas, rank.dp_shard % grid.ep_dp_shard,
          chosen_share(router, grid.ep()));
}

std::vector<ExpertCall> ExpertGroup::sent(int64_t width) const {
  std::vector<ExpertCall> calls;
  each_axis([&](Axis axis, const RankRows& of_ranks, int place, double share) {
    if (!grid.ep_exchanges) {
      calls.push_back({axis, CollectiveKind::AllGather,
                       sent_by_all_gather(travelling_elements(of_ranks, width), place)});
      return;
    }
    const auto others = static_cast<double>(of_ranks.size() - 1);
    const auto own = static_cast<double>(of_ranks[static_cast<size_t>(place)]);
    calls.push_back(
        {axis, CollectiveKind::AllToAll, expected_elements(own * others * share, width)});
  });
  return calls;
}

std::vector<ExpertCall> ExpertGroup::returned(int64_t width) const {
  std::vector<ExpertCall> calls;
  each_axis([&](Axis axis, const RankRows& of_ranks, int place, double share) {
    if (!grid.ep_exchanges) {
      calls.push_back({axis, CollectiveKind::ReduceScatter,
                       sent_by_reduce_scatter(travelling_elements(of_ranks, width), place)});
      return;
    }
    const int64_t all = std::accumulate(of_ranks.begin(), of_ranks.end(), int64_t{0});
    const auto others = static_cast<double>(all - of_ranks[static_cast<size_t>(place)]);
    calls.push_back({axis, CollectiveKind::AllToAll, expected_elements(others * share, width)});
  });
  return calls;
}

std::vector<ExpertCall> ExpertGroup::counts() const {
  std::vector<ExpertCall> calls;
  each_axis([&](Axis axis, const RankRows& of_ranks, int, double) {
    if (grid.ep_exchanges)
      calls.push_back({axis, CollectiveKind::AllToAll, std::ssize(of_ranks) - 1});
  });
  return calls;
}

}  // namespace zea::detail
