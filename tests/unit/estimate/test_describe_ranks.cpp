// SPDX-License-Identifier: Apache-2.0
// The plan's text on ranks and nodes: the map, the bytes between nodes, the warning.
#include "estimate/describe.hpp"
#include "estimate/traffic.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "support/tiny_llava.hpp"

namespace zea::test_describe_ranks {
namespace {

using testing::tiny_llava_config;

Plan plan_of(const std::function<void(Options&)>& set, int ranks) {
  Options options;
  options.run.mode = "evaluate";
  options.data.row_tokens = 16;
  options.schedule.global_batch = ranks;
  set(options);
  return make_plan(options, tiny_llava_config(), ranks);
}

std::string text_of(const Plan& plan, int ranks_per_node) {
  return describe_ranks(plan,
                        order_ranks(plan.mesh, even_nodes(plan.world_size(), ranks_per_node),
                                    plan.options.mesh.order),
                        synthetic_samples(plan));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(DescribeRanks, SaysNothingOfOneNode) {
  EXPECT_EQ(text_of(plan_of([](Options&) {}, 4), 0), "");
}

TEST(DescribeRanks, NamesWholeReplicasOfEachNode) {
  const Plan plan = plan_of([](Options& options) { options.meshes["llm"].tp = 2; }, 12);
  const std::string text = text_of(plan, 4);
  EXPECT_TRUE(contains(text, "node 0, replicas 0-1: all of it, ranks 0-3\n")) << text;
  EXPECT_TRUE(contains(text, "node 2, replicas 4-5: all of it, ranks 8-11\n")) << text;
  EXPECT_FALSE(contains(text, "warning")) << text;
  EXPECT_FALSE(contains(text, "llm.tp ")) << text;
}

TEST(DescribeRanks, NamesPartsOfReplicasAndWarnsWhereTpCrosses) {
  const Plan plan = plan_of([](Options& options) { options.meshes["llm"].tp = 4; }, 8);
  const std::string text = text_of(plan, 2);
  EXPECT_TRUE(contains(text, "node 1, replica 0: vision+llm 2-3\n")) << text;
  EXPECT_TRUE(contains(text, "warning: 2 of 2 tp groups of llm cross nodes")) << text;
}

TEST(DescribeRanks, IsShortForManyNodes) {
  const Plan plan = plan_of([](Options&) {}, 64);
  const std::string text = text_of(plan, 2);
  EXPECT_TRUE(contains(text,
                       "nodes\n  node 0, replicas 0-1: all of it, ranks 0-1\n"
                       "  ... 30 more\n  node 31, replicas 62-63"))
      << text;
}

TEST(DescribeRanks, DrawsAReplicaAndANodeOfManyRanks) {
  const Plan plan = plan_of(
      [](Options& options) {
        options.meshes["llm"].tp = 2;
        options.meshes["llm"].cp = 2;
        options.meshes["llm"].pp = 2;
        options.meshes["llm"].strategy = options.meshes["vision"].strategy = "no_shard";
        options.meshes["llm"].cp_block = 4;
      },
      512);

  EXPECT_TRUE(contains(describe(plan),
                       "ranks\n  replica 0 of 64, whose ranks follow each other; in brackets "
                       "those of a tp group\n"
                       "    vision       [0] [1] [2] [3]\n"
                       "    llm.pp0      [0-1] [2-3]\n"
                       "    llm.pp1      [4-5] [6-7]\n"
                       "  rank 511:  llm(dp_replicate=0 dp_shard=63 pp=1 encoder_dp=0 cp=1 tp=1)\n"
                       "modules, on"))
      << describe(plan);
  const std::string text = text_of(plan, 4);
  EXPECT_TRUE(contains(text,
                       "nodes\n  node 0, replica 0: vision+llm.pp0 0-3\n"
                       "    vision       [0] [1] [2] [3]\n"
                       "    llm.pp0      [0-1] [2-3]\n"
                       "  ... 126 more\n"
                       "  node 127, replica 63: llm.pp1 508-511\n"))
      << text;
  EXPECT_EQ(std::ranges::count(text.substr(0, text.find("bytes that cross")), '\n'), 6) << text;
}

TEST(DescribeRanks, CutsALargeReplicaShort) {
  const Plan plan = plan_of(
      [](Options& options) {
        options.meshes["llm"].cp = 32;
        options.meshes["llm"].cp_block = 1;
      },
      64);
  EXPECT_TRUE(
      contains(describe(plan), "    llm          [0] [1] [2] [3] [4] [5] ... 25 more [31]\n"))
      << describe(plan);
}

Traffic sent_by(const Plan& plan, int rank) {
  return traffic_of_samples(plan, synthetic_samples(plan), rank);
}

Traffic between_nodes(const Plan& plan, int ranks_per_node) {
  return traffic_between_nodes(plan,
                               order_ranks(plan.mesh, even_nodes(plan.world_size(), ranks_per_node),
                                           plan.options.mesh.order),
                               synthetic_samples(plan));
}

TEST(NodeTraffic, CountsWhatARankSendsByItsPeersOnOtherNodes) {
  const auto text_only = [](Options& options) { options.data.row_tokens = 4; };
  const Plan plan = plan_of(
      [&](Options& options) {
        text_only(options);
        options.meshes["llm"].tp = 2;
      },
      4);
  const Traffic sent = sent_by(plan, 0);
  const std::string shards = "llm.dp_shard+encoder_dp+cp";

  // A rank's shard group has one other rank, of the other replica.
  EXPECT_EQ(between_nodes(plan, 2), (Traffic{{shards, 4 * sent.at(shards)}}));
  EXPECT_EQ(between_nodes(plan, 4), Traffic{});
  Traffic all;
  for (int rank = 0; rank < 4; ++rank) add_traffic(all, sent_by(plan, rank));
  const Traffic apart = between_nodes(plan, 1);
  ASSERT_EQ(apart.size(), all.size());
  for (const auto& [group, bytes] : all)
    EXPECT_NEAR(static_cast<double>(apart.at(group)), static_cast<double>(bytes),
                0.1 * static_cast<double>(bytes))
        << group;

  // Two of the three other ranks of this rank's shard group are on the other node.
  const Plan four = plan_of(text_only, 4);
  const int64_t bytes = sent_by(four, 0).at(shards);
  EXPECT_NEAR(static_cast<double>(between_nodes(four, 2).at(shards)),
              4 * static_cast<double>(bytes) * 2 / 3, 1);
}

TEST(NodeTraffic, OfThousandsOfRanksTakesEachGroupOnce) {
  constexpr int kRanks = 16384;
  const Plan plan = plan_of([](Options& options) { options.data.row_tokens = 4; }, kRanks);
  const std::string shards = "llm.dp_shard+encoder_dp+cp";
  const auto sent = static_cast<double>(sent_by(plan, 0).at(shards));
  const double part = static_cast<double>(kRanks - 8) / (kRanks - 1);
  EXPECT_NEAR(static_cast<double>(between_nodes(plan, 8).at(shards)), kRanks * sent * part,
              1e-6 * kRanks * sent);
}

TEST(NodeTraffic, CountsFeaturesThatGoToTheLanguageModel) {
  const Plan plan = plan_of(
      [](Options& options) {
        options.run.mode = "train";
        options.data.train = "train.h5";
        options.schedule.global_batch = 1;
        options.mesh.placement = "disjoint";
        options.meshes["vision"].encoder_dp = 1;
        options.meshes["vision"].strategy = options.meshes["llm"].strategy = "no_shard";
      },
      2);
  const Traffic crossing = between_nodes(plan, 1);
  const int64_t features =
      plan.model.encoders[0].item_shape().features * plan.model.decoder.block.hidden * 4;

  ASSERT_EQ(plan.mesh.links.size(), 1);
  const std::string link = plan.mesh.links[0].name;
  EXPECT_EQ(crossing, (Traffic{{link + " outputs", features}, {link + " gradients", features}}));
}

}  // namespace
}  // namespace zea::test_describe_ranks
