// SPDX-License-Identifier: Apache-2.0
// Row functors run by a team of lanes as a device's, with a thread of the host for each lane.
#pragma once

#include <barrier>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/lanes.hpp"

namespace zea::testing {

/// State that the lanes of a team share.
struct SharedTeam {
  explicit SharedTeam(int lanes) : barrier(lanes), parts(lanes) {}
  std::barrier<> barrier;
  std::vector<double> parts;
};

/// The first lane comes late to an item, the last one late out of a sync: code that relies on the
/// order of lanes between syncs fails.
inline void linger() {
  std::this_thread::sleep_for(std::chrono::microseconds(200));
}

/// The team of detail::TeamLane.
class ThreadTeam {
 public:
  ThreadTeam(SharedTeam& team, int lane) : team_(&team), lane_(lane) {}
  int lane() const { return lane_; }
  int lanes() const { return static_cast<int>(team_->parts.size()); }
  void sync() const {
    team_->barrier.arrive_and_wait();
    if (lane_ == lanes() - 1) linger();
  }

  template <class W, class Join>
  W all(W value, const Join& join) const {
    team_->parts[lane_] = value;
    sync();
    W joined = static_cast<W>(team_->parts[0]);
    for (int lane = 1; lane < lanes(); ++lane)
      joined = join(joined, static_cast<W>(team_->parts[lane]));
    sync();
    return joined;
  }

 private:
  SharedTeam* team_;
  int lane_;
};

/// functor(lane, item) for all items.
template <class Functor>
void run_by_threads(int lanes, const Functor& functor, int64_t items) {
  SharedTeam team(lanes);
  std::vector<std::jthread> threads;
  for (size_t lane = 0; lane < team.parts.size(); ++lane)
    threads.emplace_back([&, lane] {
      const detail::TeamLane<ThreadTeam> own(ThreadTeam(team, static_cast<int>(lane)));
      for (int64_t item = 0; item < items; ++item) {
        if (lane == 0) linger();
        functor(own, item);
      }
    });
}

}  // namespace zea::testing
