// SPDX-License-Identifier: Apache-2.0
#include "layout/axis.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace zea {
namespace {

/// The degrees of an axis; ranks follow each other along the last one.
struct AxisRow {
  const char* name;
  int Coordinate::*member;
  int MeshShape::*replicas;  ///< its degree, of all modules
  int ModuleGrid::*degree;   ///< or inside a replica of one
};

constexpr AxisRow kAxes[kNumAxes] = {
    {"dp_replicate", &Coordinate::dp_replicate, &MeshShape::dp_replicate, nullptr},
    {"dp_shard", &Coordinate::dp_shard, &MeshShape::dp_shard, nullptr},
    {"pp", &Coordinate::pp, nullptr, &ModuleGrid::pp},
    {"encoder_dp", &Coordinate::encoder_dp, nullptr, &ModuleGrid::encoder_dp},
    {"cp", &Coordinate::cp, nullptr, &ModuleGrid::cp},
    {"tp", &Coordinate::tp, nullptr, &ModuleGrid::tp},
};

int degree_of(const MeshShape& shape, const ModuleGrid& grid, const AxisRow& axis) {
  return axis.degree ? grid.*axis.degree : shape.*axis.replicas;
}

/// Names of the parts of axes, from Axis::ExpertDpShard on.
constexpr const char* kPartNames[] = {"expert_dp_shard", "ep_dp_shard", "expert_cp", "ep_cp"};

/// The digits of a rank's number, of which groups are made: the axes in their order, some of which
/// have two parts.
struct DigitRow {
  Axis axis, part;
  int ModuleGrid::*neighbors = nullptr;  ///< how many ranks along the axis the inner part has
  bool is_inner = false;
};

constexpr DigitRow kDigits[] = {
    {Axis::DpReplicate, Axis::DpReplicate},
    {Axis::DpShard, Axis::ExpertDpShard, &ModuleGrid::ep_dp_shard},
    {Axis::DpShard, Axis::EpDpShard, &ModuleGrid::ep_dp_shard, true},
    {Axis::Pp, Axis::Pp},
    {Axis::EncoderDp, Axis::EncoderDp},
    {Axis::Cp, Axis::ExpertCp, &ModuleGrid::ep_cp},
    {Axis::Cp, Axis::EpCp, &ModuleGrid::ep_cp, true},
    {Axis::Tp, Axis::Tp},
};

/// A digit of the ranks of a module.
class Digit {
 public:
  Digit(const MeshShape& shape, const ModuleGrid& grid, const DigitRow& row)
      : axis_(kAxes[static_cast<int>(row.axis)]),
        inner_(row.neighbors ? grid.*row.neighbors : 1),
        is_inner_(row.is_inner),
        degree_(is_inner_ ? inner_ : degree_of(shape, grid, axis_) / inner_) {}

  int degree() const { return degree_; }
  int of(const Coordinate& coordinate) const {
    const int along = coordinate.*axis_.member;
    return is_inner_ ? along % inner_ : along / inner_;
  }
  void set(Coordinate& coordinate, int value) const {
    coordinate.*axis_.member += (value - of(coordinate)) * (is_inner_ ? 1 : inner_);
  }

 private:
  const AxisRow& axis_;
  int inner_;
  bool is_inner_;
  int degree_;
};

/// The digits of `axes`, in order.
std::vector<Digit> digits_of(const MeshShape& shape, const ModuleGrid& grid,
                             const std::vector<Axis>& axes) {
  std::vector<Digit> digits;
  for (const DigitRow& row : kDigits)
    if (std::ranges::count(axes, row.axis) + std::ranges::count(axes, row.part) > 0)
      digits.emplace_back(shape, grid, row);
  return digits;
}

}  // namespace

const char* axis_name(Axis axis) {
  const int number = static_cast<int>(axis);
  return number < kNumAxes ? kAxes[number].name : kPartNames[number - kNumAxes];
}

int Coordinate::along(Axis axis) const {
  ZEA_ASSERT(static_cast<int>(axis) < kNumAxes);
  return this->*kAxes[static_cast<int>(axis)].member;
}

int RankLink::rank_of(int rank_in_replica) const {
  const RankRange& first = from.first < to.first ? from : to;
  const RankRange& second = from.first < to.first ? to : from;
  if (first.has(rank_in_replica)) return rank_in_replica - first.first;
  ZEA_ASSERT(second.has(rank_in_replica));
  return first.count + rank_in_replica - second.first;
}

std::vector<int> RankLink::peers_of(int rank_in_replica) const {
  const RankRange& own = from.has(rank_in_replica) ? from : to;
  const RankRange& other = from.has(rank_in_replica) ? to : from;
  std::vector<int> peers;
  for (int place = 0; place < other.count; ++place)
    if (carries_features || place == rank_in_replica - own.first)
      peers.push_back(rank_of(other.first + place));
  return peers;
}

int MeshShape::ranks_per_replica() const {
  int last = 0;
  for (const ModuleGrid& grid : modules) last = std::max(last, grid.first_rank + grid.ranks());
  return last;
}

const ModuleGrid& MeshShape::grid(const std::string& module) const {
  for (const ModuleGrid& candidate : modules)
    if (candidate.module == module) return candidate;
  throw InternalError("no grid for module " + module);
}

const RankLink& MeshShape::link(const std::string& name) const {
  for (const RankLink& candidate : links)
    if (candidate.name == name) return candidate;
  throw InternalError("no link " + name);
}

bool MeshShape::has(int world_rank, const std::string& module) const {
  const ModuleGrid& own = grid(module);
  const int inside = world_rank % ranks_per_replica();
  return inside >= own.first_rank && inside < own.first_rank + own.ranks();
}

Coordinate MeshShape::coordinate(int world_rank, const std::string& module) const {
  ZEA_ASSERT(has(world_rank, module));
  const ModuleGrid& own = grid(module);
  const int replica = world_rank / ranks_per_replica();
  int left = replica * own.ranks() + world_rank % ranks_per_replica() - own.first_rank;
  Coordinate coordinate;
  for (int a = kNumAxes - 1; a >= 0; --a) {
    const int degree = degree_of(*this, own, kAxes[a]);
    coordinate.*kAxes[a].member = left % degree;
    left /= degree;
  }
  return coordinate;
}

int MeshShape::rank_at(const Coordinate& coordinate, const std::string& module) const {
  const ModuleGrid& own = grid(module);
  int rank = 0;
  for (const AxisRow& axis : kAxes)
    rank = rank * degree_of(*this, own, axis) + coordinate.*axis.member;
  return rank / own.ranks() * ranks_per_replica() + own.first_rank + rank % own.ranks();
}

int MeshShape::size_along(const std::string& module, const std::vector<Axis>& axes) const {
  int size = 1;
  for (const Digit& digit : digits_of(*this, grid(module), axes)) size *= digit.degree();
  return size;
}

int MeshShape::rank_along(int world_rank, const std::string& module,
                          const std::vector<Axis>& axes) const {
  const Coordinate here = coordinate(world_rank, module);
  int rank = 0;
  for (const Digit& digit : digits_of(*this, grid(module), axes))
    rank = rank * digit.degree() + digit.of(here);
  return rank;
}

std::vector<int> MeshShape::group(int world_rank, const std::string& module,
                                  const std::vector<Axis>& axes) const {
  const std::vector<Digit> digits = digits_of(*this, grid(module), axes);
  Coordinate there = coordinate(world_rank, module);
  std::vector<int> ranks(static_cast<size_t>(size_along(module, axes)));
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
    int left = i;
    for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
      digit->set(there, left % digit->degree());
      left /= digit->degree();
    }
    ranks[static_cast<size_t>(i)] = rank_at(there, module);
  }
  return ranks;
}

}  // namespace zea
