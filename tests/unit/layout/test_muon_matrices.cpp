// SPDX-License-Identifier: Apache-2.0
// Exchange of Muon's matrices between ranks, simulated with numbers: the rank that orthogonalizes a
// matrix has all of it, in its order.
#include "layout/muon_matrices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "schedule/plan.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_muon_matrices {
namespace {

using Numbers = std::vector<int64_t>;

struct Layout {
  const char* name;
  const char* strategy;
  int ranks, shards;
  bool has_stacks = false;  ///< of experts
};

/// A number for each element of the buffers.
int64_t number(int buffer, int64_t element) {
  return (int64_t{buffer} << 40) + element;
}

Numbers whole(const MuonMatrix& matrix) {
  Numbers numbers;
  for (const FlatPart& member : matrix.members)
    for (int64_t i = 0; i < member.elements; ++i)
      numbers.push_back(number(matrix.buffer, member.flat_begin + i));
  return numbers;
}

/// Returns a rank's part of its replica's runs, one after the other.
Numbers section_of(const Plan& plan, const MuonShare& share, int shards, int shard, int replica) {
  Numbers all;
  for (const MuonRun& run : share.runs) {
    EXPECT_EQ(run.shard, shard);
    const FlatRange range = shard_range(plan.buffers[run.buffer], shard, shards);
    for (int64_t i = 0; i < run.elements; ++i)
      all.push_back(number(run.buffer, range.begin + run.begin + i));
  }
  const auto first = share.of_replicas.begin();
  const auto begin = all.begin() + std::reduce(first, first + replica);
  return {begin, begin + share.of_replicas[static_cast<size_t>(replica)]};
}

/// Packed one after another by rank, as all_to_all sends and receives.
Numbers part_for(const Numbers& section, const std::vector<int64_t>& counts, int rank) {
  const auto begin = section.begin() + std::reduce(counts.begin(), counts.begin() + rank);
  return {begin, begin + counts[static_cast<size_t>(rank)]};
}

class MuonMatrices : public ::testing::TestWithParam<Layout> {
 protected:
  MuonMatrices() {
    Options options;
    options.optim.kind = "muon";
    options.mesh.dp_replicate = GetParam().ranks / GetParam().shards;
    for (const char* module : {"vision", "llm"})
      options.meshes[module].strategy = GetParam().strategy;
    std::string config = testing::tiny_llava_config({.layers = 8});
    if (GetParam().has_stacks)
      config = testing::with_stacks(testing::with_experts(config), "out_in");
    plan_ = std::make_unique<Plan>(make_plan(options, config, GetParam().ranks));
  }
  std::vector<MuonPart> parts() const {
    return muon_parts(plan_->model, plan_->buffers, plan_->shardings, plan_->cuts,
                      plan_->param_rules, plan_->held_buffers(0));
  }
  const Sharding& sharding(const MuonPart& part) const {
    return plan_->shardings[static_cast<size_t>(part.buffers.front())];
  }
  MuonShare share(const MuonPart& part, int shard, int replica, bool joins_all) const {
    return muon_share(part, plan_->buffers, sharding(part), shard, replica, joins_all);
  }

  std::unique_ptr<Plan> plan_;
};

TEST_P(MuonMatrices, AreMadeOnceAndWhole) {
  for (const MuonPart& part : parts())
    for (const bool joins_all : {false, true}) {
      const int shards = GetParam().shards, replicas = GetParam().ranks / shards;
      ASSERT_EQ(sharding(part).shards, shards);
      ASSERT_EQ(sharding(part).replicas, replicas);
      std::vector<int> times(part.matrices.size(), 0);
      for (int replica = 0; replica < replicas; ++replica)
        for (int shard = 0; shard < shards; ++shard) {
          const MuonShare own = share(part, shard, replica, joins_all);
          const Numbers section = section_of(*plan_, own, shards, shard, replica);
          Numbers received, joined(static_cast<size_t>(own.joined_elements), -1);
          for (int other = 0; other < shards; ++other) {
            const MuonShare theirs = share(part, other, replica, joins_all);
            const Numbers sent =
                part_for(section_of(*plan_, theirs, shards, other, replica), theirs.sent, shard);
            ASSERT_EQ(std::ssize(sent), own.received[static_cast<size_t>(other)]);
            received.insert(received.end(), sent.begin(), sent.end());
          }
          EXPECT_EQ(own.sent[static_cast<size_t>(shard)], 0);
          for (const MuonJoin& join : own.joins)
            std::copy_n((join.shard == shard ? section : received).begin() + join.from,
                        join.elements, joined.begin() + join.to);
          for (const MuonMade& made : own.made) {
            const MuonMatrix& matrix = part.matrices[static_cast<size_t>(made.matrix)];
            const auto begin = (made.is_joined ? joined : section).begin() + made.begin;
            EXPECT_EQ(Numbers(begin, begin + matrix.held_elements()), whole(matrix));
            EXPECT_EQ(matrix.held_elements(), matrix.elements());
            EXPECT_EQ(matrix.owner, own.rank);
            ++times[static_cast<size_t>(made.matrix)];
          }
        }
      EXPECT_EQ(times, std::vector<int>(part.matrices.size(), 1));
    }
}

TEST_P(MuonMatrices, AreThoseOfEachExpert) {
  int64_t tensors = 0, matrices = 0;
  for (size_t p = 0; p < plan_->model.params.size(); ++p) {
    const ParamSpec& param = plan_->model.params[p];
    if (plan_->param_rules[p].orthogonalizes)
      tensors += param.stacks_experts ? param.shape[0] : param.begins_tensor() ? 1 : 0;
  }
  for (const MuonPart& part : parts()) matrices += std::ssize(part.matrices);
  EXPECT_EQ(matrices, tensors);
}

/// Returns the elements that an iteration holds for each of a rank's matrices, most first.
Numbers iterations_of(const MuonPart& part, const MuonShare& share) {
  Numbers all;
  for (const MuonMade& made : share.made) {
    const Shape& shape = part.matrices[static_cast<size_t>(made.matrix)].shape;
    const int64_t least = std::min(shape[0], shape[1]);
    all.push_back(4 * shape[0] * shape[1] + 4 * least * least);
  }
  std::ranges::sort(all, std::greater());
  return all;
}

TEST_P(MuonMatrices, TakeTheElementsOfTheShares) {
  for (const MuonPart& part : parts())
    for (const int tp : {1, 2})
      for (const int64_t threads : {1, 3}) {
        const int shards = GetParam().shards, replicas = GetParam().ranks / shards;
        const std::vector<MuonElements> told =
            muon_elements(part, plan_->buffers, sharding(part), tp, threads);
        ASSERT_EQ(std::ssize(told), GetParam().ranks);
        for (int rank = 0; rank < shards * replicas; ++rank) {
          const MuonShare own = share(part, rank % shards, rank / shards, tp > 1);
          Numbers iterations = iterations_of(part, own);
          iterations.resize(static_cast<size_t>(threads), 0);  // all are small
          const MuonElements& of_rank = told[static_cast<size_t>(rank)];
          EXPECT_EQ(of_rank.moved, std::reduce(own.of_replicas.begin(), own.of_replicas.end()) +
                                       std::reduce(own.received.begin(), own.received.end()));
          EXPECT_EQ(of_rank.made, own.joined_elements +
                                      std::reduce(iterations.begin(), iterations.end()) +
                                      (tp > 1 ? tp * part.counts[static_cast<size_t>(rank)] : 0));
        }
      }
}

TEST_P(MuonMatrices, AreMadeOneByOneWhereTheyAreLarge) {
  MuonPart part = parts().front();
  for (MuonMatrix& matrix : part.matrices) matrix.shape = {600, 700};
  const auto of = [&](int64_t threads) {
    return muon_elements(part, plan_->buffers, sharding(part), 1, threads).front().made;
  };
  EXPECT_EQ(of(3), of(1));
  EXPECT_GE(of(1), 4 * 600 * (700 + 600));
}

/// A distribution without regard to shards would send all but 1 / shards of them.
TEST_P(MuonMatrices, AreMadeWhereTheyLie) {
  int64_t sent = 0, all = 0;
  for (const MuonPart& part : parts()) {
    for (const MuonMatrix& matrix : part.matrices) all += matrix.held_elements();
    for (int replica = 0; replica < sharding(part).replicas; ++replica)
      for (int shard = 0; shard < sharding(part).shards; ++shard)
        for (const int64_t count : share(part, shard, replica, false).sent) sent += count;
  }
  const double blind = 1 - 1.0 / sharding(parts().front()).shards;
  EXPECT_LE(static_cast<double>(sent), 0.5 * blind * static_cast<double>(all));
}

INSTANTIATE_TEST_SUITE_P(Layouts, MuonMatrices,
                         ::testing::Values(Layout{"One", "no_shard", 1, 1},
                                           Layout{"Replicas", "no_shard", 3, 1},
                                           Layout{"Shards", "full_shard", 2, 2},
                                           Layout{"ManyShards", "full_shard", 5, 5},
                                           Layout{"Stacks", "full_shard", 3, 3, true},
                                           Layout{"Hybrid", "hybrid_shard", 4, 2}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace zea::test_muon_matrices
