// SPDX-License-Identifier: Apache-2.0
// The position of each MPI rank: examples whose map is written out, and properties of many meshes.
#include "layout/rank_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace zea::test_rank_order {
namespace {

using Ranks = std::vector<int>;

ModuleGrid grid(const char* module, int first_rank, int pp, int cp, int tp) {
  ModuleGrid made;
  made.module = module;
  made.first_rank = first_rank;
  made.pp = pp;
  made.cp = cp;
  made.tp = tp;
  return made;
}

/// A vision encoder over tp 2, an audio encoder on one rank, and a language model of tp 4 x 2
/// stages, each on ranks of its own: three encoder ranks and eight of the language model.
MeshShape three_and_eight(int replicas) {
  return {1,
          replicas,
          {grid("vision", 0, 1, 1, 2), grid("audio", 2, 1, 1, 1), grid("llm", 3, 2, 1, 4)},
          {}};
}

MeshShape one_module(int replicas, int pp, int cp, int tp) {
  return {1, replicas, {grid("llm", 0, pp, cp, tp)}, {}};
}

Ranks numbers(int from, int to) {
  Ranks ranks(to - from);
  std::iota(ranks.begin(), ranks.end(), from);
  return ranks;
}

Ranks on_node(const RankOrder& order, int node) {
  Ranks ranks;
  for (int rank = 0; rank < static_cast<int>(order.node_of_logical.size()); ++rank)
    if (order.node_of_logical[rank] == node) ranks.push_back(rank);
  return ranks;
}

/// Every MPI rank has one logical rank, on the node that it is on.
void expect_consistent(const RankOrder& order, const Ranks& node_of_world) {
  Ranks sorted = order.logical_of_world;
  std::sort(sorted.begin(), sorted.end());
  ASSERT_EQ(sorted, numbers(0, static_cast<int>(node_of_world.size())));
  std::set<std::pair<int, int>> pairs;
  for (size_t world = 0; world < node_of_world.size(); ++world)
    pairs.emplace(node_of_world[world], order.node_of_logical[order.logical_of_world[world]]);
  EXPECT_EQ(pairs.size(), std::set<int>(node_of_world.begin(), node_of_world.end()).size());
}

/// tp groups with ranks on several nodes, counted one by one.
int crossing_tp_groups(const MeshShape& shape, const RankOrder& order) {
  int crossing = 0;
  for (const ModuleGrid& of_module : shape.modules)
    for (int rank = 0; rank < shape.world_size(); ++rank) {
      if (!shape.has(rank, of_module.module)) continue;
      const Ranks group = shape.group(rank, of_module.module, {Axis::Tp});
      std::set<int> nodes;
      for (const int member : group) nodes.insert(order.node_of_logical[member]);
      crossing += group.front() == rank && nodes.size() > 1;
    }
  return crossing;
}

TEST(NodeCrossings, CountNodesBeyondTheFirst) {
  // Two replicas of 2 stages x cp 2 x tp 2 on nodes of 3.
  const MeshShape shape = one_module(2, 2, 2, 2);
  const NodeCrossings found = count_crossings(shape, even_nodes(16, 3));

  EXPECT_EQ(found.tp, 3);       // ranks 2-3, 8-9, 14-15
  EXPECT_EQ(found.cp, 4);       // 0-3, 4-7, 8-11, 12-15
  EXPECT_EQ(found.stages, 4);   // the same ranks
  EXPECT_EQ(found.modules, 5);  // 0-7 on nodes 0-2, 8-15 on 2-5
  EXPECT_EQ(found.replicas, 5);
  EXPECT_EQ(least_crossings(shape, 3), (NodeCrossings{0, 4, 4, 4, 4}));
}

TEST(RankOrder, ThreeEncoderRanksAndEightOfTheLanguageModelOnNodesOfEight) {
  const RankOrder order = order_ranks(three_and_eight(2), even_nodes(22, 8), {});

  EXPECT_EQ(order.logical_of_world,
            Ranks({3,  4,  5,  6,  7,  8,  9,  10,  // node 0: llm of replica 0
                   14, 15, 16, 17, 18, 19, 20, 21,  // node 1: llm of replica 1
                   0,  1,  2,  11, 12, 13}));       // node 2: all encoders
  EXPECT_EQ(count_crossings(three_and_eight(2), order.node_of_logical),
            (NodeCrossings{.replicas = 2}));
  EXPECT_TRUE(tp_warnings(three_and_eight(2), order).empty());
}

TEST(RankOrder, KeepsTheLanguageModelsTpInsideNodesForAnyNumberOfReplicas) {
  for (int replicas = 1; replicas <= 16; ++replicas) {
    const MeshShape shape = three_and_eight(replicas);
    const Ranks nodes = even_nodes(shape.world_size(), 8);
    const RankOrder order = order_ranks(shape, nodes, {});
    expect_consistent(order, nodes);
    const NodeCrossings crossings = count_crossings(shape, order.node_of_logical);
    EXPECT_EQ(crossings.tp, 0) << replicas;
    EXPECT_EQ(crossings.stages, 0) << replicas;
  }
}

TEST(RankOrder, KeepsTheEncodersOfAReplicaTogetherWhereNodesAllow) {
  // 48 replicas fill 66 nodes: 18 of them hold the encoders, of two replicas and two ranks more.
  const MeshShape shape = three_and_eight(48);
  const RankOrder order = order_ranks(shape, even_nodes(528, 8), {});

  EXPECT_EQ(count_crossings(shape, order.node_of_logical),
            (NodeCrossings{.replicas = 36 + 2 * 12}));
}

TEST(RankOrder, LeavesRanksAloneWhereBlocksFitAsTheyCome) {
  EXPECT_TRUE(order_ranks(three_and_eight(2), even_nodes(22, 0), {}).is_identity());
  EXPECT_TRUE(order_ranks(one_module(4, 1, 2, 2), even_nodes(16, 8), {}).is_identity());
  EXPECT_TRUE(order_ranks(one_module(2, 3, 1, 4), even_nodes(24, 8), {}).is_identity());
}

TEST(RankOrder, GathersRanksThatALauncherAssignedRoundRobin) {
  const Ranks nodes = {0, 1, 0, 1, 0, 1, 0, 1};

  const RankOrder order = order_ranks(one_module(2, 1, 1, 4), nodes, {});

  EXPECT_EQ(order.logical_of_world, Ranks({0, 4, 1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(on_node(order, 1), numbers(4, 8));
}

TEST(RankOrder, PutsTpBeforeStages) {
  // On nodes of 6 the five stages of the encoder would leave no room for a tp group of 4.
  const MeshShape shape{1, 2, {grid("vision", 0, 5, 1, 1), grid("llm", 5, 1, 1, 4)}, {}};

  const RankOrder order = order_ranks(shape, even_nodes(18, 6), {});

  EXPECT_EQ(count_crossings(shape, order.node_of_logical).tp, 0);
}

TEST(RankOrder, FollowsMeshOrder) {
  // Two replicas of tp 2: dp first makes the ranks with the same part neighbors.
  const MeshShape shape = one_module(2, 1, 1, 2);

  const RankOrder order =
      order_ranks(shape, even_nodes(4, 2), {"dp", "tp", "cp", "encoder_dp", "pp", "module"});

  EXPECT_EQ(order.logical_of_world, Ranks({0, 2, 1, 3}));
  const std::vector<std::string> warnings = tp_warnings(shape, order);
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_NE(warnings[0].find("2 of 2 tp groups of llm cross nodes"), std::string::npos);
  EXPECT_NE(warnings[0].find("mesh.order"), std::string::npos);
}

TEST(RankOrder, MeshOrderOfTheGridIsTheGridItself) {
  const std::vector<std::string> nearest = {"tp", "cp", "encoder_dp", "pp", "module", "dp"};
  EXPECT_TRUE(order_ranks(three_and_eight(3), even_nodes(33, 8), nearest).is_identity());
}

TEST(RankOrder, SaysWhenTpMustCross) {
  const MeshShape wide = one_module(2, 1, 1, 16);
  const auto warnings = tp_warnings(wide, order_ranks(wide, even_nodes(32, 8), {}));
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_NE(warnings[0].find("2 of 2 tp groups of llm"), std::string::npos) << warnings[0];
  EXPECT_NE(warnings[0].find("at most 8 ranks"), std::string::npos) << warnings[0];

  const MeshShape odd = one_module(2, 1, 1, 3);
  const auto of_odd = tp_warnings(odd, order_ranks(odd, even_nodes(6, 4), {}));
  ASSERT_EQ(of_odd.size(), 1);
  EXPECT_NE(of_odd[0].find("1 of 2 tp groups"), std::string::npos) << of_odd[0];
  EXPECT_NE(of_odd[0].find("a multiple of mesh.llm.tp = 3"), std::string::npos) << of_odd[0];
}

/// One module of tp x cp ranks whose cp ranks exchange heads in groups of `inner`.
MeshShape two_level(int tp, int cp, int inner) {
  MeshShape shape = one_module(1, 1, cp, tp);
  shape.modules[0].cp_inner = inner;
  return shape;
}

std::vector<std::string> ulysses_warnings_of(const MeshShape& shape, int ranks_per_node,
                                             int heads = 64) {
  const RankOrder order = order_ranks(shape, even_nodes(shape.world_size(), ranks_per_node), {});
  return ulysses_warnings(shape, order, [&](const ModuleGrid& grid, int ranks) {
    return heads / grid.tp % ranks == 0;
  });
}

TEST(RankOrder, SaysWhichUlyssesGroupsWouldLieInsideNodes) {
  const auto warnings = ulysses_warnings_of(two_level(1, 16, 8), 4);
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_EQ(warnings[0],
            "2 of 2 groups of llm that exchange heads (mesh.llm.cp_ulysses_ranks = 8) cross nodes, "
            "which the ring between them is for: set mesh.llm.cp_ulysses_ranks = 4, whose groups "
            "lie inside nodes");
  // Two tp ranks leave room for two of the four on a node.
  const auto beside_tp = ulysses_warnings_of(two_level(2, 8, 4), 4);
  ASSERT_EQ(beside_tp.size(), 1);
  EXPECT_NE(beside_tp[0].find("4 of 4 groups"), std::string::npos) << beside_tp[0];
  EXPECT_NE(beside_tp[0].find("set mesh.llm.cp_ulysses_ranks = 2,"), std::string::npos);
  // Six would fit, but do not divide the heads.
  const auto of_heads = ulysses_warnings_of(two_level(1, 12, 4), 6, 8);
  ASSERT_EQ(of_heads.size(), 1);
  EXPECT_NE(of_heads[0].find("1 of 3 groups"), std::string::npos) << of_heads[0];
  EXPECT_NE(of_heads[0].find("set mesh.llm.cp_ulysses_ranks = 2,"), std::string::npos);
}

TEST(RankOrder, SaysNothingOfUlyssesGroupsThatFitOrCannot) {
  EXPECT_TRUE(ulysses_warnings_of(two_level(1, 16, 4), 4).empty());
  EXPECT_TRUE(ulysses_warnings_of(two_level(2, 8, 2), 4).empty());
  EXPECT_TRUE(ulysses_warnings_of(two_level(1, 16, 1), 4).empty()) << "a ring alone";
  EXPECT_TRUE(ulysses_warnings_of(two_level(1, 16, 16), 4).empty()) << "ulysses alone";
  EXPECT_TRUE(ulysses_warnings_of(two_level(4, 4, 2), 4).empty()) << "tp fills the nodes";
}

/// Modules on ranks of their own with degrees that are powers of two.
MeshShape random_mesh(std::mt19937_64& random) {
  const auto one_of = [&](std::vector<int> values) { return values[random() % values.size()]; };
  MeshShape shape{1, one_of({1, 2, 3, 5}), {}, {}};
  int first = 0;
  for (const char* module : {"vision", "audio", "llm"}) {
    shape.modules.push_back(
        grid(module, first, one_of({1, 2, 3}), one_of({1, 2}), one_of({1, 2, 4})));
    first += shape.modules.back().ranks();
  }
  return shape;
}

TEST(RankOrder, NeverLetsTpCrossWhereNodesAreAMultipleOfIt) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 80; ++i) {
    const MeshShape shape = random_mesh(random);
    for (const int per_node : {4, 8, 12}) {
      const Ranks nodes = even_nodes(shape.world_size(), per_node);
      const RankOrder order = order_ranks(shape, nodes, {});
      expect_consistent(order, nodes);
      const NodeCrossings found = count_crossings(shape, order.node_of_logical);
      EXPECT_FALSE(found < least_crossings(shape, per_node));
      const bool whole_nodes = shape.world_size() % per_node == 0;
      EXPECT_TRUE(crossing_tp_groups(shape, order) == 0 || !whole_nodes)
          << i << " on nodes of " << per_node;
    }
  }
}

TEST(RankOrder, IsNoWorseThanNotReordering) {
  std::mt19937_64 random(6);
  for (int i = 0; i < 60; ++i) {
    const MeshShape shape = random_mesh(random);
    Ranks nodes(shape.world_size());
    for (int& node : nodes) node = 7 * static_cast<int>(random() % 3);
    const RankOrder order = order_ranks(shape, nodes, {});
    expect_consistent(order, nodes);
    EXPECT_LE(count_crossings(shape, order.node_of_logical), count_crossings(shape, nodes));
  }
}

}  // namespace
}  // namespace zea::test_rank_order
