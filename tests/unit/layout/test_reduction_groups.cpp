// SPDX-License-Identifier: Apache-2.0
// The table of gradient reduction, simulated on many mesh shapes: each rank contributes its share,
// shard groups reduce-scatter, replicas all-reduce, holders of one piece sum; then every element
// must hold each share of the global batch exactly once, and be counted once in the norm.
#include "layout/reduction.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "support/grid_table.hpp"

namespace zea::test_reduction_groups {
namespace {

/// A share of the global batch's gradient: whose tokens, and which tp rank's slice of them or query
/// heads.
using Share = std::tuple<int, int, int, int, int>;
using Gradient = std::map<Share, double>;
/// The part of a tensor that a rank holds: its stage, and its index if tp ranks hold different
/// parts.
using Piece = std::pair<int, int>;

/// A parameter of a module: which tp ranks hold it, and how their tokens lie.
struct Case {
  MeshShape shape;
  std::string module;
  ParamShard cut;
  bool sequence_parallel;
};

constexpr int kMostRanks = 32;

/// The shapes of the table, and others with pipelines.
std::vector<MeshShape> shapes() {
  std::vector<MeshShape> all;
  for (const testing::Grid& grid : testing::grids()) all.push_back(testing::mesh_of(grid));
  for (int replicate : {1, 2})
    for (int shard : {1, 2})
      for (int pp : {1, 2})
        for (int cp : {1, 2, 3, 4})
          for (int tp : {1, 3, 4}) {
            if (replicate * shard * pp * cp * tp > kMostRanks) continue;
            all.push_back({replicate, shard, {{"llm", 0, pp, 1, cp, tp}}});
            if (tp == 3) continue;
            const int ranks = pp * cp * tp;
            // Encoders on the same ranks, of which tp x cp leaves some to encoder_dp; and on ranks
            // of their own.
            for (int vision_tp : {1, tp})
              for (int vision_cp : {1, 2, 3, 4})
                if (const int used = vision_tp * vision_cp; ranks % used == 0)
                  all.push_back({replicate,
                                 shard,
                                 {{"vision", 0, 1, ranks / used, vision_cp, vision_tp},
                                  {"llm", 0, pp, 1, cp, tp}}});
            if (shard == 1)
              all.push_back({replicate,
                             shard,
                             {{"vision", 0, 1, cp == 3 ? 1 : 3, cp == 3 ? 3 : 1, 1},
                              {"audio", 3, 1, 1, 2, 2},
                              {"llm", 7, pp, 1, cp, tp}}});
          }
  return all;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const MeshShape& shape : shapes())
    for (const ModuleGrid& grid : shape.modules)
      for (bool sequence_parallel : {false, true}) {
        for (bool of_heads : {false, true})
          all.push_back({shape, grid.module, {{}, -1, grid.tp, of_heads}, sequence_parallel});
        for (int holders = 1; holders <= grid.tp; ++holders)
          if (grid.tp % holders == 0)
            all.push_back({shape, grid.module, {{}, 0, holders, false}, sequence_parallel});
      }
  return all;
}

Piece piece_of(const Case& c, const Coordinate& at) {
  return {at.pp, at.tp / c.cut.holders};
}

/// Returns whether the holders of a piece have different parts of the inputs of its gradient.
bool holders_differ(const Case& c) {
  return c.cut.dim >= 0 || c.cut.of_heads || c.sequence_parallel;
}

/// Returns the index of the holder that contributes; holders that compute equal shares count as
/// one.
int slice_of(const Case& c, const Coordinate& at) {
  return holders_differ(c) ? at.tp % c.cut.holders : 0;
}

std::set<Share> all_shares(const Case& c) {
  const ModuleGrid& grid = c.shape.grid(c.module);
  const int slices = holders_differ(c) ? c.cut.holders : 1;
  std::set<Share> shares;
  for (int replicate = 0; replicate < c.shape.dp_replicate; ++replicate)
    for (int shard = 0; shard < c.shape.dp_shard; ++shard)
      for (int item = 0; item < grid.encoder_dp; ++item)
        for (int cp = 0; cp < grid.cp; ++cp)
          for (int slice = 0; slice < slices; ++slice)
            shares.insert({replicate, shard, item, cp, slice});
  return shares;
}

std::vector<int> ranks_of(const MeshShape& shape, const std::string& module) {
  std::vector<int> ranks;
  for (int rank = 0; rank < shape.world_size(); ++rank)
    if (shape.has(rank, module)) ranks.push_back(rank);
  return ranks;
}

class Simulation {
 public:
  explicit Simulation(const Case& c) : case_(c), ranks_(ranks_of(c.shape, c.module)) {
    for (int rank : ranks_) {
      groups_[rank] = c.shape.group(rank, c.module, shard_axes());
      holders_[rank] = piece_holders(c.shape, rank, c.module, c.cut.holders);
    }
    for (int rank : ranks_) shards_[rank] = reduced_to_shards(rank);
  }

  const std::vector<int>& ranks() const { return ranks_; }
  const std::vector<int>& group(int rank) const { return groups_.at(rank); }
  const std::vector<int>& holders(int rank) const { return holders_.at(rank); }

  /// This rank's place among those that share its buffer: the shard that it owns.
  int shard_index(int rank) const {
    const std::vector<int>& ranks = group(rank);
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }

  /// Returns the final contents of the rank's shard.
  Gradient reduced(int rank) const {
    Gradient sum;
    for (int holder : holders(rank)) {
      EXPECT_EQ(shard_index(holder), shard_index(rank));
      EXPECT_EQ(group(holder).size(), group(rank).size());
      for (const auto& [share, weight] : shards_.at(holder))
        sum[share] += weight * holder_scale(case_.cut, case_.sequence_parallel);
    }
    return sum;
  }

 private:
  /// After the reduce-scatter over the shard group and the all-reduce over replicas.
  Gradient reduced_to_shards(int rank) const {
    Gradient sum;
    for (int copy : case_.shape.group(rank, case_.module, {Axis::DpReplicate})) {
      EXPECT_EQ(shard_index(copy), shard_index(rank));
      for (int member : group(copy)) {
        const Coordinate at = case_.shape.coordinate(member, case_.module);
        sum[{at.dp_replicate, at.dp_shard, at.encoder_dp, at.cp, slice_of(case_, at)}] += 1;
      }
    }
    return sum;
  }

  const Case& case_;
  std::vector<int> ranks_;  ///< of the module
  std::map<int, std::vector<int>> groups_, holders_;
  std::map<int, Gradient> shards_;
};

std::string describe(const Case& c) {
  const ModuleGrid& grid = c.shape.grid(c.module);
  return c.module + " dp_replicate " + std::to_string(c.shape.dp_replicate) + " dp_shard " +
         std::to_string(c.shape.dp_shard) + " pp " + std::to_string(grid.pp) + " encoder_dp " +
         std::to_string(grid.encoder_dp) + " cp " + std::to_string(grid.cp) + " tp " +
         std::to_string(grid.tp) + " dim " + std::to_string(c.cut.dim) + " holders " +
         std::to_string(c.cut.holders) + (c.sequence_parallel ? " sequence parallel" : "");
}

TEST(Reduction, CountsEveryShareOfTheBatchOnce) {
  for (const Case& c : cases()) {
    const Simulation simulation(c);
    const std::set<Share> expected = all_shares(c);
    for (int rank : simulation.ranks()) {
      const Gradient gradient = simulation.reduced(rank);
      ASSERT_EQ(gradient.size(), expected.size()) << describe(c);
      for (const auto& [share, weight] : gradient) {
        ASSERT_TRUE(expected.count(share)) << describe(c);
        ASSERT_NEAR(weight, 1.0, 1e-15) << describe(c);
      }
    }
  }
}

TEST(Reduction, SumsOnlyAmongHoldersOfTheSamePiece) {
  for (const Case& c : cases()) {
    const Simulation simulation(c);
    for (int rank : simulation.ranks()) {
      const Piece own = piece_of(c, c.shape.coordinate(rank, c.module));
      for (const auto& ranks_with : {&Simulation::group, &Simulation::holders}) {
        const std::vector<int> ranks = (simulation.*ranks_with)(rank);
        ASSERT_TRUE(std::find(ranks.begin(), ranks.end(), rank) != ranks.end());
        for (int member : ranks) {
          ASSERT_EQ(piece_of(c, c.shape.coordinate(member, c.module)), own) << describe(c);
          ASSERT_EQ((simulation.*ranks_with)(member), ranks) << describe(c);
        }
      }
      ASSERT_EQ(static_cast<int>(simulation.holders(rank).size()), c.cut.holders);
    }
  }
}

/// Norms and files count replicated parts on the first rank that holds them.
TEST(Reduction, FirstHoldersHoldEveryElementOnceInACopyOfTheModel) {
  for (const Case& c : cases()) {
    const Simulation simulation(c);
    std::map<std::tuple<int, Piece, int>, int> owners;  // copy, tensor, shard -> ranks
    for (int rank : simulation.ranks()) {
      const Coordinate at = c.shape.coordinate(rank, c.module);
      if (c.cut.is_first_holder(at.tp))
        ++owners[{at.dp_replicate, piece_of(c, at), simulation.shard_index(rank)}];
    }
    const ModuleGrid& grid = c.shape.grid(c.module);
    const int tensors = grid.pp * grid.tp / c.cut.holders;
    const int shards = static_cast<int>(simulation.group(simulation.ranks().front()).size());
    ASSERT_EQ(static_cast<int>(owners.size()), c.shape.dp_replicate * tensors * shards);
    for (const auto& [what, count] : owners) ASSERT_EQ(count, 1) << describe(c);
  }
}

TEST(Reduction, ReplicasPartitionTheWorld) {
  for (const MeshShape& shape : shapes())
    for (int rank = 0; rank < shape.world_size(); ++rank) {
      const std::vector<int> near = replica(shape, rank);
      ASSERT_EQ(static_cast<int>(near.size()), shape.ranks_per_replica());
      ASSERT_TRUE(std::binary_search(near.begin(), near.end(), rank));
    }
}

/// Tokens are exchanged for heads between neighbors, so that they can be on one node; keys travel
/// between ranks of the same number.
TEST(Reduction, ContextParallelGroupsAreRowsAndColumnsOfTheCpRanks) {
  for (int replicas : {1, 2})
    for (int tp : {1, 2, 3, 4})
      for (int cp : {1, 2, 3, 4, 6, 8})
        for (int inner = 1; inner <= cp; ++inner) {
          if (cp % inner != 0) continue;
          MeshShape shape{1, replicas, {{"vision", 0, 1, cp * tp, 1, 1}, {"llm", 0, 1, 1, cp, tp}}};
          shape.modules[1].cp_inner = inner;
          for (int rank = 0; rank < shape.world_size(); ++rank) {
            const std::vector<int> row = cp_inner_group(shape, rank, "llm");
            const std::vector<int> column = cp_outer_group(shape, rank, "llm");
            const Coordinate at = shape.coordinate(rank, "llm");
            ASSERT_EQ(static_cast<int>(row.size()), inner);
            ASSERT_EQ(static_cast<int>(column.size()), cp / inner);
            for (int i = 0; i < inner; ++i) {
              Coordinate expected = at;
              expected.cp = at.cp / inner * inner + i;
              ASSERT_EQ(shape.coordinate(row[i], "llm"), expected);
            }
            for (int i = 0; i < cp / inner; ++i) {
              Coordinate expected = at;
              expected.cp = i * inner + at.cp % inner;
              ASSERT_EQ(shape.coordinate(column[i], "llm"), expected);
            }
          }
        }
}

}  // namespace
}  // namespace zea::test_reduction_groups
