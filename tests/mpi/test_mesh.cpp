// SPDX-License-Identifier: Apache-2.0
// Meshes of many layouts on real communicators: every group that a rank is given has the ranks that
// the shape says, also where modules stand on ranks of their own, and talks.
#include "zea/comm/mesh.hpp"

#include <gtest/gtest.h>

#include <set>

#include "support/mpi_main.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

std::vector<MeshShape> layouts() {
  std::vector<MeshShape> all = {
      {2, 1, {{"vision", 0, 1, 1, 1, 1}, {"llm", 1, 1, 1, 1, 1}}},
      {2, 2, {{"vision", 0, 1, 1, 1, 1}, {"llm", 1, 1, 1, 1, 1}}},
      {1, 2, {{"vision", 0, 1, 1, 1, 1}, {"audio", 1, 1, 1, 1, 1}, {"llm", 2, 1, 1, 1, 2}}},
      {1, 1, {{"vision", 0, 1, 4, 1, 1}, {"llm", 0, 2, 1, 1, 2}}},
      {1, 1, {{"vision", 0, 1, 2, 1, 2}, {"llm", 4, 2, 1, 2, 1}}}};
  for (int replicate : {1, 2})
    for (int shard : {1, 2})
      for (int pp : {1, 2})
        for (int cp : {1, 2})
          for (int tp : {1, 2, 4}) all.push_back({replicate, shard, {{"llm", 0, pp, 1, cp, tp}}});
  return all;
}

std::vector<std::vector<Axis>> built_combinations() {
  return {{Axis::DpReplicate},
          {Axis::DpShard},
          {Axis::Pp},
          {Axis::DpModule},
          {Axis::Cp},
          {Axis::Tp},
          {Axis::DpShard, Axis::DpReplicate},
          shard_axes(),
          shard_axes_with_tp(),
          token_axes()};
}

/// The ranks that a group really connects.
std::vector<int> members(Collectives& group, int own_rank) {
  std::vector<int> ranks(group.size());
  group.all_gather(&own_rank, ranks.data(), Counts(group.size(), 1), DType::Int32).wait();
  return ranks;
}

/// Calls check(mesh) on the ranks of every layout that this run has ranks for.
void sweep(const std::function<void(Mesh&)>& check) {
  for (const MeshShape& shape : layouts()) {
    if (shape.world_size() > testing::world().size()) continue;
    const Communicator some = testing::first_ranks(shape.world_size());
    if (some.size() == 0) continue;
    std::map<std::string, int> repeats;
    for (const ModuleGrid& grid : shape.modules)
      if (grid.tp == 4) repeats[grid.module] = 2;
    Mesh mesh(some, shape, make_mpi_collectives, repeats);
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

TEST(Mesh, HasShardGroupsOfRepeatedHeads) {
  sweep([](Mesh& mesh) {
    const ModuleGrid& grid = mesh.shape().modules.back();
    if (grid.tp != 4 || !mesh.shape().has(mesh.rank(), grid.module)) return;
    const Reduction repeated = reduction_of(TpHolding::Repeated, 4, 2);

    EXPECT_EQ(members(mesh.shard_group(grid.module, repeated), mesh.rank()),
              shard_group(mesh.shape(), mesh.rank(), grid.module, repeated));
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

TEST(Mesh, ConnectsReplicasAndModelCopies) {
  sweep([](Mesh& mesh) {
    EXPECT_EQ(members(mesh.replica(), mesh.rank()), replica(mesh.shape(), mesh.rank()));
    EXPECT_EQ(members(mesh.model_copy(), mesh.rank()), model_copy(mesh.shape(), mesh.rank()));
    EXPECT_EQ(mesh.world().size(), mesh.shape().world_size());
  });
}

TEST(Mesh, BuildsEqualGroupsOnce) {
  for (const MeshShape& shape : layouts()) {
    if (shape.world_size() > testing::world().size()) continue;
    const Communicator some = testing::first_ranks(shape.world_size());
    if (some.size() == 0) continue;
    int num_made = 0;

    Mesh mesh(some, shape, [&](const Communicator& communicator) {
      ++num_made;
      return make_mpi_collectives(communicator);
    });

    std::set<std::vector<int>> distinct = {replica(shape, mesh.rank()),
                                           model_copy(shape, mesh.rank())};
    for (const ModuleGrid& grid : shape.modules)
      for (const std::vector<Axis>& axes : built_combinations())
        if (shape.has(mesh.rank(), grid.module))
          distinct.insert(shape.group(mesh.rank(), grid.module, axes));
    EXPECT_EQ(mesh.num_groups(), static_cast<int>(distinct.size()));
    EXPECT_EQ(num_made, mesh.num_groups() + 1);  // and the world
  }
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

TEST(Mesh, RefusesAnotherNumberOfRanks) {
  const Communicator all = testing::world().communicator();
  const MeshShape shape{all.size() + 1, 1, {{"llm", 0, 1, 1, 1, 1}}};

  EXPECT_THROW(Mesh(all, shape, make_mpi_collectives), InternalError);
}

}  // namespace
}  // namespace zea
