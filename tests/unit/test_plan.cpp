// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/tiny_llava.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

using testing::tiny_llava_config;

std::string refusal(const Options& options, int world_size) {
  try {
    make_plan(options, tiny_llava_config(), world_size);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Plan, PrintsEveryFactorOfAMeshThatDoesNotFit) {
  Options options;
  options.mesh.dp_replicate = 2;
  options.mesh.dp_shard = 3;
  const std::string text = refusal(options, 4);
  for (const char* part : {"dp_replicate (2)", "dp_shard (3)", "world size 4"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Plan, RefusesAxesThatAreNotBuiltAllAtOnce) {
  Options options;
  options.mesh_llm.tp = 2;
  options.mesh_vision.cp = 4;
  options.mesh_llm.pp = 3;
  options.mesh.placement = "disjoint";
  const std::string text = refusal(options, 4);
  for (const char* part : {"mesh.llm.tp = 2", "mesh.vision.cp = 4", "mesh.llm.pp = 3",
                           "mesh.placement = \"disjoint\""})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Plan, RefusesToTrainNothing) {
  Options options;
  options.vision = {.train = false, .train_projector = false};
  options.llm.train = false;
  EXPECT_NE(refusal(options, 1).find("nothing to train"), std::string::npos);
}

TEST(Plan, OwnCutsOfAllRanksCoverABufferOnceUnderEveryStrategy) {
  for (const char* strategy : {"no_shard", "hybrid_shard"})
    for (int ranks : {1, 2, 3, 6})
      for (int replicate : {1, 2, 3}) {
        if (ranks % replicate != 0) continue;
        Options options;
        options.mesh.dp_replicate = replicate;
        options.mesh_llm.strategy = strategy;
        options.mesh_vision.strategy = "hybrid_shard_zero2";
        const Plan plan = make_plan(options, tiny_llava_config(), ranks);
        for (size_t g = 0; g < plan.groups.size(); ++g) {
          const int64_t end = plan.groups[g].padded(plan.shardings[g].shards);
          std::vector<int> owners(end, 0);
          for (int rank = 0; rank < ranks; ++rank) {
            const FlatRange cut = plan.own_cut(rank, static_cast<int>(g));
            const FlatRange shard = shard_range(
                plan.groups[g], plan.shard_of(rank, static_cast<int>(g)), plan.shardings[g].shards);
            EXPECT_GE(cut.begin, shard.begin);
            EXPECT_LE(cut.end, shard.end);
            EXPECT_LE(cut.end - cut.begin, end / ranks + 1);
            for (int64_t i = cut.begin; i < cut.end; ++i) ++owners[i];
          }
          EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), end)
              << strategy << " on " << ranks;
        }
      }
}

TEST(Plan, DescribesRanksUnitsAndBytes) {
  Options options;
  const std::string text = describe(make_plan(options, tiny_llava_config(), 512));
  for (const char* part : {"512 ranks = dp_replicate 1 x dp_shard 512",
                           "rank 511:", "vision.layers.1", "llm.head", "bytes per rank"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Plan, FullShardDividesTheOwnedBytes) {
  Options options;
  const MemoryEstimate one = estimate_memory(make_plan(options, tiny_llava_config(), 1));
  const MemoryEstimate four = estimate_memory(make_plan(options, tiny_llava_config(), 4));
  EXPECT_EQ(one.gathered, 0);
  EXPECT_GT(four.gathered, 0);
  EXPECT_NEAR(static_cast<double>(four.moments) / static_cast<double>(one.moments), 0.25, 0.05);
}

}  // namespace
}  // namespace zea
