// SPDX-License-Identifier: Apache-2.0
// The table of gradient reduction, simulated on many mesh shapes: each rank contributes its share,
// shard groups reduce-scatter, replicas all-reduce; then every element must hold each share of the
// global batch exactly once, and be counted once in the norm.
#include "zea/plan/reduction.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace zea {
namespace {

/// A share of the global batch's gradient: whose tokens, and which tp rank's slice of them or query
/// heads.
using Share = std::tuple<int, int, int, int, int>;
using Gradient = std::map<Share, double>;
/// What tensor a rank holds a part of: its stage and, where tp ranks hold different ones, which.
using Piece = std::pair<int, int>;

struct Case {
  MeshShape shape;
  std::string module;
  TpHolding holding;
  int repeats;
};

std::vector<MeshShape> shapes() {
  std::vector<MeshShape> all;
  for (int replicate : {1, 2})
    for (int shard : {1, 2})
      for (int pp : {1, 2})
        for (int cp : {1, 2})
          for (int tp : {1, 4}) {
            all.push_back({replicate, shard, {{"llm", 0, pp, 1, cp, tp}}});
            const int ranks = pp * cp * tp;
            // Encoders on the same ranks, of which tp x cp leaves some to dp_module; and on ranks
            // of their own.
            all.push_back({replicate,
                           shard,
                           {{"vision", 0, 1, ranks / tp, 1, tp}, {"llm", 0, pp, 1, cp, tp}}});
            all.push_back(
                {replicate,
                 shard,
                 {{"vision", 0, 1, 3, 1, 1}, {"audio", 3, 1, 1, 2, 2}, {"llm", 7, pp, 1, cp, tp}}});
          }
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const MeshShape& shape : shapes())
    for (const ModuleGrid& grid : shape.modules) {
      for (TpHolding holding : {TpHolding::Cut, TpHolding::Sliced, TpHolding::Copied})
        all.push_back({shape, grid.module, holding, 1});
      for (int repeats = 2; repeats <= grid.tp; repeats *= 2)
        all.push_back({shape, grid.module, TpHolding::Repeated, repeats});
    }
  return all;
}

Piece piece_of(const Case& c, const Coordinate& at) {
  switch (c.holding) {
    case TpHolding::Cut:
      return {at.pp, at.tp};
    case TpHolding::Repeated:
      return {at.pp, at.tp / c.repeats};
    default:
      return {at.pp, 0};
  }
}

/// Which of several tp ranks with the same tensor contributes; those that compute equal shares
/// count as one.
int slice_of(const Case& c, const Coordinate& at) {
  switch (c.holding) {
    case TpHolding::Sliced:
      return at.tp;
    case TpHolding::Repeated:
      return at.tp % c.repeats;
    default:
      return 0;
  }
}

std::set<Share> all_shares(const Case& c) {
  const ModuleGrid& grid = c.shape.grid(c.module);
  const int slices = c.holding == TpHolding::Sliced ? grid.tp : c.repeats;
  std::set<Share> shares;
  for (int replicate = 0; replicate < c.shape.dp_replicate; ++replicate)
    for (int shard = 0; shard < c.shape.dp_shard; ++shard)
      for (int item = 0; item < grid.dp_module; ++item)
        for (int cp = 0; cp < grid.cp; ++cp)
          for (int slice = 0; slice < slices; ++slice)
            shares.insert({replicate, shard, item, cp, slice});
  return shares;
}

class Simulation {
 public:
  explicit Simulation(const Case& c)
      : case_(c), reduction_(reduction_of(c.holding, c.shape.grid(c.module).tp, c.repeats)) {}

  std::vector<int> group(int rank) const {
    return shard_group(case_.shape, rank, case_.module, reduction_);
  }

  /// This rank's place among those that share its buffer: the shard that it owns.
  int shard_index(int rank) const {
    const std::vector<int> ranks = group(rank);
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }

  /// What the rank's shard holds after the reduce-scatter over the group and the all-reduce over
  /// replicas.
  Gradient reduced(int rank) const {
    Gradient sum;
    for (int copy : case_.shape.group(rank, case_.module, reduction_.replica_axes)) {
      EXPECT_EQ(shard_index(copy), shard_index(rank));
      EXPECT_EQ(group(copy).size(), group(rank).size());
      for (int member : group(copy)) {
        const Coordinate at = case_.shape.coordinate(member, case_.module);
        sum[{at.dp_replicate, at.dp_shard, at.dp_module, at.cp, slice_of(case_, at)}] +=
            reduction_.scale;
      }
    }
    return sum;
  }

 private:
  const Case& case_;
  Reduction reduction_;
};

std::string describe(const Case& c) {
  const ModuleGrid& grid = c.shape.grid(c.module);
  return c.module + " dp_replicate " + std::to_string(c.shape.dp_replicate) + " dp_shard " +
         std::to_string(c.shape.dp_shard) + " pp " + std::to_string(grid.pp) + " dp_module " +
         std::to_string(grid.dp_module) + " cp " + std::to_string(grid.cp) + " tp " +
         std::to_string(grid.tp) + " holding " + std::to_string(static_cast<int>(c.holding)) +
         " repeats " + std::to_string(c.repeats);
}

std::vector<int> ranks_of(const Case& c) {
  std::vector<int> ranks;
  for (int rank = 0; rank < c.shape.world_size(); ++rank)
    if (c.shape.has(rank, c.module)) ranks.push_back(rank);
  return ranks;
}

TEST(Reduction, CountsEveryShareOfTheBatchOnce) {
  for (const Case& c : cases()) {
    const Simulation simulation(c);
    const std::set<Share> expected = all_shares(c);
    for (int rank : ranks_of(c)) {
      const Gradient gradient = simulation.reduced(rank);
      ASSERT_EQ(gradient.size(), expected.size()) << describe(c);
      for (const auto& [share, weight] : gradient) {
        ASSERT_TRUE(expected.count(share)) << describe(c);
        ASSERT_DOUBLE_EQ(weight, 1.0) << describe(c);
      }
    }
  }
}

TEST(Reduction, SharesABufferOnlyAmongHoldersOfTheSameTensor) {
  for (const Case& c : cases()) {
    const Simulation simulation(c);
    for (int rank : ranks_of(c)) {
      const std::vector<int> group = simulation.group(rank);
      const Piece own = piece_of(c, c.shape.coordinate(rank, c.module));
      ASSERT_TRUE(std::find(group.begin(), group.end(), rank) != group.end());
      for (int member : group) {
        ASSERT_EQ(piece_of(c, c.shape.coordinate(member, c.module)), own) << describe(c);
        ASSERT_EQ(simulation.group(member), group) << describe(c);
      }
    }
  }
}

TEST(Reduction, HoldsEveryElementOnceInACopyOfTheModel) {
  for (const Case& c : cases()) {
    const Simulation simulation(c);
    std::map<std::tuple<int, Piece, int>, int> owners;  // copy, tensor, shard -> ranks
    for (int rank : ranks_of(c)) {
      const Coordinate at = c.shape.coordinate(rank, c.module);
      const int copy = model_copy(c.shape, rank).front();
      ++owners[{copy, piece_of(c, at), simulation.shard_index(rank)}];
    }
    const ModuleGrid& grid = c.shape.grid(c.module);
    const int tensors = grid.pp * (c.holding == TpHolding::Cut        ? grid.tp
                                   : c.holding == TpHolding::Repeated ? grid.tp / c.repeats
                                                                      : 1);
    const int shards = static_cast<int>(simulation.group(ranks_of(c).front()).size());
    ASSERT_EQ(static_cast<int>(owners.size()), c.shape.dp_replicate * tensors * shards);
    for (const auto& [what, count] : owners) ASSERT_EQ(count, 1) << describe(c);
  }
}

TEST(Reduction, ReplicasAndModelCopiesPartitionTheWorld) {
  for (const MeshShape& shape : shapes())
    for (int rank = 0; rank < shape.world_size(); ++rank) {
      const std::vector<int> near = replica(shape, rank);
      const std::vector<int> copy = model_copy(shape, rank);

      ASSERT_EQ(static_cast<int>(near.size()), shape.ranks_per_replica());
      ASSERT_EQ(static_cast<int>(copy.size()) * shape.dp_replicate, shape.world_size());
      ASSERT_TRUE(std::includes(copy.begin(), copy.end(), near.begin(), near.end()));
      ASSERT_TRUE(std::binary_search(near.begin(), near.end(), rank));
    }
}

}  // namespace
}  // namespace zea
