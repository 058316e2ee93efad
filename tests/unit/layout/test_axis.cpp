// SPDX-License-Identifier: Apache-2.0
// The arithmetic of ranks, by exhaustion over many mesh shapes: shared grids, and modules on ranks
// of their own.
#include "layout/axis.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/error.hpp"
#include "layout/reduction.hpp"
#include "support/grid_table.hpp"

namespace zea::test_axis {
namespace {

std::vector<Axis> axes_of_mask(int mask) {
  std::vector<Axis> axes;
  for (int a = 0; a < kNumAxes; ++a)
    if (mask & (1 << a)) axes.push_back(static_cast<Axis>(a));
  return axes;
}

std::vector<int> ranks_holding(const MeshShape& shape, const std::string& module) {
  std::vector<int> ranks;
  for (int rank = 0; rank < shape.world_size(); ++rank)
    if (shape.has(rank, module)) ranks.push_back(rank);
  return ranks;
}

/// One grid for both modules; the second module on ranks of its own with degrees of its own; and
/// the grids of the table.
std::vector<MeshShape> many_shapes() {
  std::vector<MeshShape> shapes;
  for (const testing::Grid& grid : testing::grids()) shapes.push_back(testing::mesh_of(grid));
  for (int replicate : {1, 2, 3})
    for (int shard : {1, 2})
      for (int pp : {1, 2})
        for (int encoder_dp : {1, 2})
          for (int cp : {1, 2, 3, 4})
            for (int tp : {1, 2, 4}) {
              const ModuleGrid vision{"vision", 0, pp, encoder_dp, cp, tp};
              ModuleGrid shared = vision;
              shared.module = "llm";
              shapes.push_back({replicate, shard, {vision, shared}});
              shapes.push_back(
                  {replicate, shard, {vision, {"llm", vision.ranks(), tp, 1, pp, cp}}});
            }
  return shapes;
}

std::string words_of(const MeshShape& shape) {
  std::string words = std::to_string(shape.dp_replicate) + " x " + std::to_string(shape.dp_shard);
  for (const ModuleGrid& grid : shape.modules)
    words += " " + grid.module + "@" + std::to_string(grid.first_rank) + ":" +
             std::to_string(grid.pp) + "," + std::to_string(grid.encoder_dp) + "," +
             std::to_string(grid.cp) + "," + std::to_string(grid.tp);
  return words;
}

int degree(const MeshShape& shape, const ModuleGrid& grid, Axis axis) {
  const int degrees[kNumAxes] = {shape.dp_replicate, shape.dp_shard, grid.pp,
                                 grid.encoder_dp,    grid.cp,        grid.tp};
  return degrees[static_cast<int>(axis)];
}

/// Every rank is in its own group; members share it; sizes are the product of the axes' degrees.
void expect_groups_partition(const MeshShape& shape, const ModuleGrid& grid,
                             const std::vector<Axis>& axes) {
  size_t size = 1;
  for (const Axis axis : axes) size *= static_cast<size_t>(degree(shape, grid, axis));
  std::map<int, std::vector<int>> group_of;
  for (const int rank : ranks_holding(shape, grid.module))
    group_of[rank] = shape.group(rank, grid.module, axes);

  for (const auto& [rank, group] : group_of) {
    ASSERT_EQ(group.size(), size);
    ASSERT_TRUE(std::is_sorted(group.begin(), group.end()));
    ASSERT_EQ(std::count(group.begin(), group.end(), rank), 1);
    for (const int member : group) ASSERT_EQ(group_of.at(member), group);
  }
}

}  // namespace

TEST(Axis, Names) {
  EXPECT_STREQ(axis_name(Axis::DpReplicate), "dp_replicate");
  EXPECT_STREQ(axis_name(Axis::EncoderDp), "encoder_dp");
  EXPECT_STREQ(axis_name(Axis::Tp), "tp");
}

TEST(Axis, CoordinateReadsItsOwnAxis) {
  const Coordinate coordinate{1, 2, 3, 4, 5, 6};

  for (int a = 0; a < kNumAxes; ++a) EXPECT_EQ(coordinate.along(static_cast<Axis>(a)), a + 1);
}

TEST(Axis, RankAtInvertsCoordinate) {
  for (const MeshShape& shape : many_shapes())
    for (const ModuleGrid& grid : shape.modules)
      for (const int rank : ranks_holding(shape, grid.module)) {
        const Coordinate coordinate = shape.coordinate(rank, grid.module);
        ASSERT_EQ(shape.rank_at(coordinate, grid.module), rank) << words_of(shape);
        for (int a = 0; a < kNumAxes; ++a) {
          const Axis axis = static_cast<Axis>(a);
          ASSERT_GE(coordinate.along(axis), 0) << words_of(shape);
          ASSERT_LT(coordinate.along(axis), degree(shape, grid, axis)) << words_of(shape);
        }
      }
}

TEST(Axis, EveryModuleHoldsItsShareOfEveryReplica) {
  for (const MeshShape& shape : many_shapes()) {
    std::vector<int> holders(static_cast<size_t>(shape.world_size()), 0);
    for (const ModuleGrid& grid : shape.modules) {
      const std::vector<int> ranks = ranks_holding(shape, grid.module);
      EXPECT_EQ(ranks.size(), static_cast<size_t>(shape.replicas() * grid.ranks()))
          << words_of(shape);
      for (const int rank : ranks) ++holders[static_cast<size_t>(rank)];
    }
    const bool is_disjoint = shape.modules[1].first_rank > 0;
    const int modules = static_cast<int>(shape.modules.size());
    for (const int count : holders) EXPECT_EQ(count, is_disjoint ? 1 : modules) << words_of(shape);
  }
}

TEST(Axis, GroupsPartitionTheRanksOfTheModule) {
  for (const MeshShape& shape : many_shapes()) {
    if (shape.world_size() > 24) continue;
    SCOPED_TRACE(words_of(shape));
    for (const ModuleGrid& grid : shape.modules)
      for (int mask = 0; mask < (1 << kNumAxes); ++mask)
        expect_groups_partition(shape, grid, axes_of_mask(mask));
  }
}

TEST(Axis, GroupsAlongOneAxisAreInTheOrderOfTheAxis) {
  for (const MeshShape& shape : many_shapes()) {
    if (shape.world_size() > 24) continue;
    for (const ModuleGrid& grid : shape.modules)
      for (const int rank : ranks_holding(shape, grid.module))
        for (int a = 0; a < kNumAxes; ++a) {
          const std::vector<int> group = shape.group(rank, grid.module, {static_cast<Axis>(a)});
          for (size_t i = 0; i < group.size(); ++i)
            ASSERT_EQ(shape.coordinate(group[i], grid.module).along(static_cast<Axis>(a)),
                      static_cast<int>(i))
                << words_of(shape);
        }
  }
}

// Encoders on 3 ranks (vision tp 2, audio 1) and a language model on 8 (tp 4, pp 2): 11 ranks a
// replica, 2 replicas.
TEST(Axis, EncodersAndLanguageModelOnRanksOfTheirOwn) {
  const MeshShape shape{
      1, 2, {{"vision", 0, 1, 1, 1, 2}, {"audio", 2, 1, 1, 1, 1}, {"llm", 3, 2, 1, 1, 4}}};

  EXPECT_EQ(shape.ranks_per_replica(), 11);
  EXPECT_EQ(shape.world_size(), 22);
  EXPECT_EQ(ranks_holding(shape, "vision"), (std::vector<int>{0, 1, 11, 12}));
  EXPECT_EQ(ranks_holding(shape, "audio"), (std::vector<int>{2, 13}));
  EXPECT_EQ(ranks_holding(shape, "llm").size(), 16u);
  EXPECT_EQ(shape.group(4, "llm", {Axis::Tp}), (std::vector<int>{3, 4, 5, 6}));
  EXPECT_EQ(shape.group(4, "llm", {Axis::Pp}), (std::vector<int>{4, 8}));
  EXPECT_EQ(shape.group(4, "llm", {Axis::DpShard}), (std::vector<int>{4, 15}));
  EXPECT_EQ(shape.group(12, "vision", {Axis::Tp}), (std::vector<int>{11, 12}));
  EXPECT_EQ(shape.group(2, "audio", {Axis::DpShard, Axis::Tp}), (std::vector<int>{2, 13}));
}

TEST(Axis, ReplicaMajorWithTensorParallelFastest) {
  const MeshShape shape{2, 2, {{"llm", 0, 2, 1, 2, 2}}};

  EXPECT_EQ(shape.coordinate(0, "llm"), (Coordinate{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(shape.coordinate(1, "llm"), (Coordinate{0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(shape.coordinate(2, "llm"), (Coordinate{0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(shape.coordinate(4, "llm"), (Coordinate{0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(shape.coordinate(8, "llm"), (Coordinate{0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(shape.coordinate(16, "llm"), (Coordinate{1, 0, 0, 0, 0, 0}));
}

/// The parts of dp_shard and cp: ranks that share experts follow each other along cp, then along
/// dp_shard, and those with the same experts are in the other direction.
TEST(Axis, RanksThatShareExpertsAreNeighbors) {
  MeshShape shape{2, 4, {{"llm", 0, 1, 1, 2, 2}}};
  ModuleGrid& grid = shape.modules[0];
  grid.ep_dp_shard = grid.ep_cp = 2;

  EXPECT_EQ(grid.ep(), 4);
  EXPECT_EQ(shape.group(5, "llm", ep_axes(shape.modules[0])), (std::vector<int>{1, 3, 5, 7}));
  EXPECT_EQ(shape.rank_along(5, "llm", ep_axes(shape.modules[0])), 2);
  EXPECT_EQ(shape.group(5, "llm", expert_shard_axes()), (std::vector<int>{5, 13}));
  EXPECT_EQ(shape.group(5, "llm", expert_token_axes()), (std::vector<int>{5, 13, 21, 29}));
  EXPECT_EQ(shape.group(5, "llm", {Axis::EpDpShard}), (std::vector<int>{1, 5}));

  grid.ep_dp_shard = 1;
  EXPECT_EQ(shape.group(5, "llm", ep_axes(shape.modules[0])), (std::vector<int>{5, 7}));
  EXPECT_EQ(shape.group(5, "llm", expert_shard_axes()), (std::vector<int>{1, 5, 9, 13}));

  shape.modules[0].cp = 4;
  EXPECT_EQ(shape.group(4, "llm", ep_axes(shape.modules[0])), (std::vector<int>{4, 6}));
  EXPECT_EQ(shape.group(4, "llm", {Axis::DpReplicate, Axis::ExpertCp}),
            (std::vector<int>{0, 4, 32, 36}));
  EXPECT_STREQ(axis_name(Axis::EpCp), "ep_cp");
  EXPECT_STREQ(axis_name(Axis::ExpertDpShard), "expert_dp_shard");
}

/// If tp ranks hold whole experts, ep counts them.
TEST(Axis, RanksThatShareExpertsMayBeAlongTp) {
  MeshShape shape{1, 2, {{"llm", 0, 1, 1, 2, 2}}};
  ModuleGrid& grid = shape.modules[0];
  grid.ep_tp = 2;
  EXPECT_EQ(grid.ep(), 2);
  EXPECT_EQ(grid.ep_token_ranks(), 1);
  EXPECT_EQ(grid.expert_tp(), 1);
  EXPECT_EQ(shape.group(3, "llm", ep_axes(grid)), (std::vector<int>{2, 3}));
  EXPECT_EQ(shape.group(3, "llm", expert_shard_axes()), (std::vector<int>{1, 3, 5, 7}));
  grid.ep_cp = grid.ep_dp_shard = 2;
  EXPECT_EQ(grid.ep(), 8);
  EXPECT_EQ(grid.ep_token_ranks(), 4);
  for (int rank = 0; rank < shape.world_size(); ++rank)
    EXPECT_EQ(shape.rank_along(rank, "llm", ep_axes(grid)), rank);
}

/// Both parts together are the axis.
TEST(Axis, GroupsOfBothPartsAreThoseOfTheAxis) {
  MeshShape shape{2, 4, {{"llm", 0, 2, 1, 4, 2}}};
  for (const auto& [dp_shard, cp] : {std::pair{1, 2}, {1, 4}, {2, 4}, {4, 4}}) {
    shape.modules[0].ep_dp_shard = dp_shard;
    shape.modules[0].ep_cp = cp;
    for (int rank = 0; rank < shape.world_size(); ++rank) {
      std::vector<Axis> parts = ep_axes(shape.modules[0]);
      for (const Axis axis : expert_shard_axes()) parts.push_back(axis);
      EXPECT_EQ(shape.group(rank, "llm", parts), shape.group(rank, "llm", shard_axes()));
      EXPECT_EQ(shape.rank_along(rank, "llm", parts), shape.rank_along(rank, "llm", shard_axes()));
      EXPECT_EQ(shape.size_along("llm", ep_axes(shape.modules[0])), dp_shard * cp);
      const std::vector<int> group = shape.group(rank, "llm", ep_axes(shape.modules[0]));
      EXPECT_EQ(
          group[static_cast<size_t>(shape.rank_along(rank, "llm", ep_axes(shape.modules[0])))],
          rank);
    }
  }
}

TEST(Axis, AskingForWhatIsNotThereIsOurBug) {
  const MeshShape shape{1, 1, {{"vision", 0, 1, 1, 1, 1}, {"llm", 1, 1, 1, 1, 1}}};

  EXPECT_THROW(shape.grid("audio"), InternalError);
  EXPECT_THROW(shape.coordinate(0, "llm"), InternalError);
}

}  // namespace zea::test_axis
