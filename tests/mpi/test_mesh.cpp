// SPDX-License-Identifier: Apache-2.0
// Meshes of many layouts on real communicators: every group of a rank has the ranks that the shape
// says, also with modules on separate ranks, and communicates.
#include "comm/mesh.hpp"

#include <gtest/gtest.h>

#include <set>

#include "core/error.hpp"
#include "support/grid_table.hpp"
#include "support/mpi_main.hpp"

namespace zea::test_mesh {
namespace {

std::vector<MeshShape> layouts() {
  std::vector<MeshShape> all = {
      {2, 1, {{"vision", 0, 1, 1, 1, 1}, {"llm", 1, 1, 1, 1, 1}}},
      {2, 2, {{"vision", 0, 1, 1, 1, 1}, {"llm", 1, 1, 1, 1, 1}}},
      {1, 2, {{"vision", 0, 1, 1, 1, 1}, {"audio", 1, 1, 1, 1, 1}, {"llm", 2, 1, 1, 1, 2}}},
      {1, 1, {{"vision", 0, 1, 4, 1, 1}, {"llm", 0, 2, 1, 1, 2}}},
      {1, 1, {{"vision", 0, 1, 2, 1, 2}, {"llm", 4, 2, 1, 2, 1}}},
      {1, 2, {{"vision", 0, 1, 2, 1, 2}, {"llm", 0, 1, 1, 2, 2}}},
      {1, 1, {{"vision", 0, 1, 1, 4, 2}, {"llm", 0, 1, 1, 8, 1}}},
      {2, 1, {{"vision", 0, 1, 4, 1, 1}, {"llm", 0, 1, 1, 4, 1}}},
      {1, 1, {{"vision", 0, 1, 1, 3, 2}, {"llm", 6, 1, 1, 2, 1}}}};
  for (int replicate : {1, 2})
    for (int shard : {1, 2})
      for (int pp : {1, 2})
        for (int cp : {1, 3, 4})
          for (int tp : {1, 2, 4}) all.push_back({replicate, shard, {{"llm", 0, pp, 1, cp, tp}}});
  for (MeshShape& shape : all)
    for (ModuleGrid& grid : shape.modules) {
      if (grid.tp > 1) grid.kv_holders = grid.tp == 4 ? 2 : grid.tp;
      if (grid.cp > 1) grid.cp_inner = grid.cp == 3 ? 3 : grid.cp / 2;
    }
  for (size_t g = 0; g < testing::grids().size(); g += 5)
    all.push_back(testing::mesh_of(testing::grids()[g]));
  return all;
}

std::vector<std::vector<Axis>> built_combinations() {
  return {{Axis::Tp}, {Axis::DpReplicate}, shard_axes(), token_axes(), stage_axes()};
}

/// The ranks that a group really connects.
std::vector<int> members(Collectives& group, int own_rank) {
  std::vector<int> ranks(group.size());
  group.all_gather(&own_rank, ranks.data(), Counts(group.size(), 1), DType::Int32).wait();
  return ranks;
}

/// Calls check(mesh) on the ranks of every layout that this run has ranks for.
void sweep(const std::function<void(Mesh&)>& check) {
  static const std::vector<MeshShape> kLayouts = layouts();
  for (const MeshShape& shape : kLayouts) {
    if (shape.world_size() > testing::world().size()) continue;
    const Communicator some = testing::first_ranks(shape.world_size());
    if (some.size() == 0) continue;
    Mesh mesh(some, shape, make_mpi_collectives);
    check(mesh);
  }
}

TEST(Mesh, ConnectsTheRanksThatTheShapeSays) {
  sweep([](Mesh& mesh) {
    for (const ModuleGrid& grid : mesh.shape().modules)
      for (const std::vector<Axis>& axes : built_combinations())
        if (mesh.shape().has(mesh.rank(), grid.module)) {
          EXPECT_EQ(members(mesh.along(grid.module, axes), mesh.rank()),
                    mesh.shape().group(mesh.rank(), grid.module, axes));
        }
  });
}

/// Calls check(mesh, grid) for each module that this rank has a part of.
void sweep_modules(const std::function<void(Mesh&, const ModuleGrid&)>& check) {
  sweep([&](Mesh& mesh) {
    for (const ModuleGrid& grid : mesh.shape().modules)
      if (mesh.shape().has(mesh.rank(), grid.module)) check(mesh, grid);
  });
}

TEST(Mesh, ConnectsTheHoldersOfAKvHead) {
  sweep_modules([](Mesh& mesh, const ModuleGrid& grid) {
    if (grid.kv_holders == 1) {
      EXPECT_THROW(mesh.kv_holders(grid.module), InternalError);
      return;
    }
    EXPECT_EQ(members(mesh.kv_holders(grid.module), mesh.rank()),
              piece_holders(mesh.shape(), mesh.rank(), grid.module, grid.kv_holders));
  });
}

TEST(Mesh, ConnectsCpRanksInsideAndBetweenTheirGroups) {
  sweep_modules([](Mesh& mesh, const ModuleGrid& grid) {
    if (grid.cp == 1) {
      EXPECT_THROW(mesh.cp_inner(grid.module), InternalError);
      return;
    }
    EXPECT_EQ(members(mesh.cp_inner(grid.module), mesh.rank()),
              cp_inner_group(mesh.shape(), mesh.rank(), grid.module));
    EXPECT_EQ(members(mesh.cp_outer(grid.module), mesh.rank()),
              cp_outer_group(mesh.shape(), mesh.rank(), grid.module));
    EXPECT_EQ(mesh.cp_inner(grid.module).size() * mesh.cp_outer(grid.module).size(), grid.cp);
  });
}

TEST(Mesh, HasTheSmallerGroupsThatParametersAreReshardedTo) {
  const int ranks = testing::world().size();
  for (int replicate : {1, 2})
    for (int size : {1, 2, 4}) {
      MeshShape shape{replicate, ranks / replicate, {{.module = "llm"}}};
      if (ranks % (replicate * size) != 0) continue;
      shape.modules[0].shard_subgroup = size;
      Mesh mesh(testing::world().communicator(), shape, make_mpi_collectives);

      const std::vector<int> group = shard_subgroup(shape, mesh.rank(), "llm", size);

      EXPECT_EQ(members(mesh.shard_subgroup("llm"), mesh.rank()), group);
      EXPECT_EQ(static_cast<int>(group.size()), size);
      EXPECT_EQ(group.front() % size, 0);
      EXPECT_EQ(group.back() - group.front(), size - 1);
    }
}

TEST(Mesh, ConnectsReplicas) {
  sweep([](Mesh& mesh) {
    EXPECT_EQ(members(mesh.replica(), mesh.rank()), replica(mesh.shape(), mesh.rank()));
    EXPECT_EQ(mesh.world().size(), mesh.shape().world_size());
  });
}

TEST(Mesh, CreatesCommunicatorsOnceAndOnlyIfUsed) {
  for (const MeshShape& shape : layouts()) {
    if (shape.world_size() > testing::world().size()) continue;
    const Communicator some = testing::first_ranks(shape.world_size());
    if (some.size() == 0) continue;
    int num_made = 0;
    Mesh mesh(some, shape, [&](const Communicator& communicator) {
      ++num_made;
      return make_mpi_collectives(communicator);
    });
    EXPECT_EQ(num_made, 0);

    std::set<std::vector<int>> distinct = {replica(shape, mesh.rank())};
    mesh.replica();
    for (const ModuleGrid& grid : shape.modules) {
      if (!shape.has(mesh.rank(), grid.module)) continue;
      for (int times = 0; times < 2; ++times)
        for (const std::vector<Axis>& axes : built_combinations()) {
          mesh.along(grid.module, axes);
          distinct.insert(shape.group(mesh.rank(), grid.module, axes));
        }
      if (grid.kv_holders > 1) {
        mesh.kv_holders(grid.module);
        distinct.insert(piece_holders(shape, mesh.rank(), grid.module, grid.kv_holders));
      }
      if (grid.cp == 1) continue;
      mesh.cp_inner(grid.module);
      mesh.cp_outer(grid.module);
      distinct.insert(cp_inner_group(shape, mesh.rank(), grid.module));
      distinct.insert(cp_outer_group(shape, mesh.rank(), grid.module));
    }
    EXPECT_EQ(num_made, static_cast<int>(distinct.size()));
    mesh.world();
    EXPECT_EQ(num_made, static_cast<int>(distinct.size()) + 1);
    std::erase_if(distinct, [](const std::vector<int>& ranks) { return ranks.size() == 1; });
    EXPECT_EQ(mesh.num_communicators(),
              static_cast<int>(distinct.size()) + (some.size() > 1 ? 1 : 0));
  }
}

/// A rank that hangs there waits for others of the group.
TEST(Mesh, RecordsThatItMakesACommunicator) {
  MeshShape shape{1, 1, {{"llm", 0, 1, 1, 1, 2}}};
  shape.links = {{.name = "a link", .from = {0, 1}, .to = {1, 1}}};
  const Communicator some = testing::first_ranks(2);
  if (some.size() < 2) return;
  ActionRecord record;
  record.start_trace();
  Mesh mesh(some, shape, make_mpi_collectives, &record);
  for (int call = 0; call < 2; ++call) mesh.along("llm", {Axis::Tp});
  std::vector<std::string> made;
  for (const TraceSpan& span : record.take_trace())
    if (span.row == TraceRow::Action) made.push_back(span.name);
  const std::vector<std::string> expected{"make communicator a link outputs",
                                          "make communicator a link gradients",
                                          "make communicator llm.tp"};
  EXPECT_EQ(made, expected);
}

TEST(Mesh, RefusesGroupsThatItHasNot) {
  sweep([](Mesh& mesh) {
    for (const ModuleGrid& grid : mesh.shape().modules) {
      EXPECT_THROW(mesh.along(grid.module, {Axis::Pp, Axis::Cp}), InternalError);
      if (!mesh.shape().has(mesh.rank(), grid.module)) {
        EXPECT_THROW(mesh.along(grid.module, {Axis::Tp}), InternalError);
      }
    }
  });
}

TEST(Mesh, StandsOnRanksInAnotherOrder) {
  const Communicator all = testing::world().communicator();
  const int place = all.size() - 1 - all.rank();
  const Communicator reversed = all.reordered(place, "reversed");
  Mesh mesh(reversed, {1, all.size(), {{"llm", 0, 1, 1, 1, 1}}}, make_mpi_collectives);
  const int own = all.rank();
  std::vector<int> numbers(all.size());

  mesh.world().all_gather(&own, numbers.data(), Counts(all.size(), 1), DType::Int32).wait();

  EXPECT_EQ(mesh.rank(), place);
  for (int rank = 0; rank < all.size(); ++rank) EXPECT_EQ(numbers[rank], all.size() - 1 - rank);
}

TEST(Mesh, RanksOfTheTestShareANode) {
  const World& world = testing::world();

  EXPECT_EQ(world.local_size(), world.size());
  EXPECT_EQ(world.node_of_rank(), std::vector<int>(world.size(), 0));
}

TEST(Mesh, RefusesAnotherNumberOfRanks) {
  const Communicator all = testing::world().communicator();
  const MeshShape shape{all.size() + 1, 1, {{"llm", 0, 1, 1, 1, 1}}};

  EXPECT_THROW(Mesh(all, shape, make_mpi_collectives), InternalError);
}

/// Flips a bit of what all-gathers of floats bring to the last rank.
class FlippingCollectives : public WrappedCollectives {
 public:
  explicit FlippingCollectives(std::unique_ptr<Collectives> real)
      : WrappedCollectives(*real), real_(std::move(real)) {}

  Pending start(const CollectiveCall& call) override {
    Pending pending = inner_.start(call);
    if (call.kind != CallKind::AllGather || call.dtype != DType::Float32 || rank() < size() - 1)
      return pending;
    pending.wait();
    *static_cast<uint32_t*>(call.receive) ^= 1;
    return {};
  }

 private:
  std::unique_ptr<Collectives> real_;
};

TEST(Mesh, GroupsCheckWhatTheyCarryOnRequest) {
  const Communicator& all = testing::world().communicator();
  if (all.size() < 2) return;
  const MeshShape shape{1, all.size(), {{"llm", 0, 1, 1, 1, 1}}};
  const auto flipping = [](const Communicator& communicator) {
    return std::make_unique<FlippingCollectives>(make_host_collectives(communicator));
  };
  for (const bool has_checksums : {false, true}) {
    Mesh mesh(all, shape, flipping, nullptr, has_checksums);
    const float own = 1.5f;
    std::vector<float> gathered(all.size());
    const auto gather = [&] {
      mesh.along("llm", shard_axes())
          .all_gather(&own, gathered.data(), Counts(all.size(), 1), DType::Float32)
          .wait();
    };
    if (has_checksums && all.rank() == all.size() - 1)
      EXPECT_THROW(gather(), Error);
    else
      gather();
  }
}

}  // namespace
}  // namespace zea::test_mesh
