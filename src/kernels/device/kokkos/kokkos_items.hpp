// SPDX-License-Identifier: Apache-2.0
// Row functors as Kokkos runs them, in any of its execution spaces. An item of few packs has a
// thread of a team with its vector lanes, which is a warp on a GPU; one of many has the whole team.
#pragma once

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <type_traits>

#include "kernels/lanes.hpp"

namespace zea::detail {

inline constexpr int64_t kMostThreadPacks = 256;
inline constexpr int64_t kMostTeams = int64_t{1} << 16;

/// A team of a space: a block of eight warps, or a core of the host.
template <class Space>
struct TeamShape {
  static constexpr bool kIsHost = std::is_same_v<typename Space::memory_space, Kokkos::HostSpace>;
  static constexpr int kThreads = kIsHost ? 1 : 8, kVector = kIsHost ? 1 : 32;
  using Policy = Kokkos::TeamPolicy<Space, Kokkos::LaunchBounds<kThreads * kVector>>;
  using Member = typename Policy::member_type;
};

/// A join as Kokkos wants it. Each lane sets its value, so that what init() says is never joined.
template <class W, class Join>
struct JoinOfLanes {
  using reducer = JoinOfLanes;
  using value_type = W;
  using result_view_type = Kokkos::View<W, Kokkos::AnonymousSpace>;

  W* joined;
  Join join_two;

  ZEA_FUNCTION void join(W& sum, const W& other) const { sum = join_two(sum, other); }
  ZEA_FUNCTION void init(W& value) const { value = W(); }
  ZEA_FUNCTION W& reference() const { return *joined; }
};

/// The lanes of an item: a team's, or one thread's.
template <class Space, bool kIsTeam>
class KokkosTeam {
 public:
  using Shape = TeamShape<Space>;
  using Member = typename Shape::Member;

  /// A range of as many as there are lanes tells each which it is.
  ZEA_FUNCTION explicit KokkosTeam(const Member& member) : member_(member) {
    Kokkos::parallel_for(all_lanes(), [&](int lane) { lane_ = lane; });
  }

  ZEA_FUNCTION int lanes() const { return kLanes; }
  ZEA_FUNCTION int lane() const { return lane_; }
  ZEA_FUNCTION void sync() const {
    if constexpr (kIsTeam)
      member_.team_barrier();
    else
      Kokkos::parallel_for(all_lanes(), [](int) {});  // ends in a sync of the vector's lanes
  }

  template <class W, class Join>
  ZEA_FUNCTION W all(W value, const Join& join) const {
    W joined = value;
    Kokkos::parallel_reduce(
        all_lanes(), [&](int, W& own) { own = value; }, JoinOfLanes<W, Join>{&joined, join});
    return joined;
  }

 private:
  static constexpr int kLanes = Shape::kVector * (kIsTeam ? Shape::kThreads : 1);

  ZEA_FUNCTION auto all_lanes() const {
    if constexpr (kIsTeam)
      return Kokkos::TeamVectorRange(member_, lanes());
    else
      return Kokkos::ThreadVectorRange(member_, lanes());
  }

  const Member& member_;
  int lane_;
};

template <class Space, class Functor, bool kIsTeam>
struct ItemsKernel {
  Functor functor;
  int64_t items;

  ZEA_FUNCTION void operator()(const typename TeamShape<Space>::Member& member) const {
    const TeamLane<KokkosTeam<Space, kIsTeam>> lane(KokkosTeam<Space, kIsTeam>{member});
    const int64_t each = kIsTeam ? 1 : member.team_size();
    const int64_t first = member.league_rank() * each + (kIsTeam ? 0 : member.team_rank());
    for (int64_t item = first; item < items; item += member.league_size() * each)
      functor(lane, item);
  }
};

template <bool kIsTeam, class Space, class Functor>
void run_in_teams(const Space& space, const Functor& functor, int64_t items) {
  using Shape = TeamShape<Space>;
  const int64_t each = kIsTeam ? 1 : Shape::kThreads;
  const int64_t teams = std::min((items + each - 1) / each, kMostTeams);
  const typename Shape::Policy policy(space, static_cast<int>(teams), Shape::kThreads,
                                      Shape::kVector);
  Kokkos::parallel_for(policy, ItemsKernel<Space, Functor, kIsTeam>{functor, items});
}

/// Starts `functor(lane, item)` for all items, of so many packs each.
template <class Space, class Functor>
void run_items_by_kokkos(const Space& space, const Functor& functor, int64_t items,
                         int64_t item_packs) {
  if (items == 0) return;
  if (item_packs > kMostThreadPacks)
    run_in_teams<true>(space, functor, items);
  else
    run_in_teams<false>(space, functor, items);
}

}  // namespace zea::detail
