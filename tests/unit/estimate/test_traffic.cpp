// SPDX-License-Identifier: Apache-2.0
// Volumes computed on paper: the textbook's for each collective, and those of a layer under tensor
// and context parallelism.
#include "estimate/traffic.hpp"

#include <gtest/gtest.h>

#include "support/tiny_llava.hpp"

namespace zea::testing::test_traffic {
namespace {

TEST(CollectiveVolume, SumsToTheTextbookOverRanks) {
  const std::vector<int64_t> counts{5, 0, 7};
  const int64_t total = 12;
  int64_t gathered = 0, scattered = 0, reduced = 0, collected = 0;
  for (int rank = 0; rank < 3; ++rank) {
    gathered += sent_by_all_gather(counts, rank);
    scattered += sent_by_reduce_scatter(counts, rank);
    reduced += sent_by_all_reduce(total + 1, 3, rank);
    collected += sent_by_gather(counts, rank, 2);
  }
  EXPECT_EQ(gathered, 2 * total);
  EXPECT_EQ(scattered, 2 * total);
  EXPECT_EQ(reduced, 2 * 2 * (total + 1));
  EXPECT_EQ(collected, 5);
  EXPECT_EQ(sent_by_all_reduce(12, 3, 1), 2 * 12 * 2 / 3);
  EXPECT_EQ(sent_by_all_to_all({1, 2, 4}, 1), 5);
  EXPECT_EQ(sent_by_broadcast(4, 3, true), 8);
  EXPECT_EQ(sent_by_broadcast(4, 3, false), 0);
}

TEST(CollectiveVolume, OneRankSendsNothing) {
  EXPECT_EQ(sent_by_all_gather({5}, 0) + sent_by_reduce_scatter({5}, 0) +
                sent_by_all_reduce(5, 1, 0) + sent_by_all_to_all({5}, 0) +
                sent_by_broadcast(5, 1, true),
            0);
}

TEST(Traffic, IsTheDifferenceOfTwoReadings) {
  Traffic sum{{"llm.tp", 3}};
  add_traffic(sum, {{"llm.tp", 2}, {"replica", 1}});
  EXPECT_EQ(sum, (Traffic{{"llm.tp", 5}, {"replica", 1}}));
  EXPECT_EQ(traffic_between({{"llm.tp", 5}}, {{"llm.tp", 5}, {"replica", 4}}),
            (Traffic{{"replica", 4}}));
  EXPECT_EQ(describe({{"llm.tp", 3 << 20}}, 2), "llm.tp 1.500 MiB");
}

/// One decoder block of width 24, in fp32, a full row of 32 tokens; frozen but for its own share.
constexpr int64_t kTokens = 32, kWidth = 24, kBytes = 4;

Options text_deck() {
  Options options;
  options.data.row_tokens = kTokens;
  options.meshes["llm"].strategy = "no_shard";
  return options;
}

/// The traffic of a step of one full row on every replica.
Traffic of_full_rows(Options options, const std::string& config, int ranks) {
  options.schedule.global_batch = make_plan(options, config, ranks).mesh.replicas();
  const Plan plan = make_plan(options, config, ranks);
  return traffic_of_samples(plan, synthetic_samples(plan), 0);
}

std::string llama_config(int64_t layers) {
  return R"({"model_type": "llama", "hidden_size": 24, "intermediate_size": 40, "head_dim": 6,
             "vocab_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
             "num_hidden_layers": )" +
         std::to_string(layers) + "}";
}

/// Returns the bytes that one more layer sends in group `name` on rank 0.
int64_t sent_by_layer(const Options& options, int ranks, const std::string& name) {
  Traffic traffic[2];
  for (int more : {0, 1}) traffic[more] = of_full_rows(options, llama_config(1 + more), ranks);
  return traffic[1][name] - traffic[0][name];
}

TEST(Traffic, OfALayerUnderTensorParallelism) {
  Options options = text_deck();
  options.meshes["llm"].tp = 2;
  // Both ranks replicate two norms, whose gradients are summed over them.
  const int64_t norms = 2 * kWidth * kBytes;
  // Half the rows, in both linear pairs: forward gathers and scatters, backward gathers dy and
  // scatters dx, and gathers the columns' input again.
  EXPECT_EQ(sent_by_layer(options, 2, "llm.tp"), 2 * 5 * (kTokens / 2) * kWidth * kBytes + norms);

  options.meshes["llm"].sequence_parallel = AutoOption::of(false);
  // An all-reduce of all rows in both directions.
  EXPECT_EQ(sent_by_layer(options, 2, "llm.tp"), 2 * 2 * kTokens * kWidth * kBytes + norms);
}

TEST(Traffic, OfALayerUnderContextParallelism) {
  Options options = text_deck();
  options.meshes["llm"].cp = 2;
  options.meshes["llm"].cp_distribution = "uniform";
  const int64_t rows = kTokens / 2, keys = 2 * 2 * 6;  // of keys and values
  options.meshes["llm"].cp_mode = "allgather_kv";
  // Gathered forward and backward, and the gradients of the other half sent home.
  EXPECT_EQ(sent_by_layer(options, 2, "llm.cp_outer"), 3 * rows * keys * kBytes);
  options.meshes["llm"].cp_mode = "ring";
  EXPECT_EQ(sent_by_layer(options, 2, "llm.cp_outer"), 3 * rows * keys * kBytes);
  options.meshes["llm"].cp_mode = "ulysses";
  // Half of the heads go, of queries, keys, values and outputs, and their gradients.
  EXPECT_EQ(sent_by_layer(options, 2, "llm.cp_inner"), 2 * rows * (24 + keys + 24) / 2 * kBytes);
}

TEST(Traffic, OfALayerUnderDataParallelism) {
  Options options = text_deck();
  const int64_t weights = 2 * 24 + 24 * (24 + 2 * 12) + 24 * 24 + 3 * 24 * 40;
  const int64_t padded = (weights + kFlatAlignment * 16) * kBytes;  // at most
  const int64_t sent = sent_by_layer(options, 2, "llm.dp_replicate+dp_shard+encoder_dp+cp");
  EXPECT_GE(sent, weights * kBytes);
  EXPECT_LE(sent, padded);

  options.meshes["llm"].strategy = "full_shard";
  const int64_t sharded = sent_by_layer(options, 2, "llm.dp_shard+encoder_dp+cp");
  // Half of it: gathered forward and backward, and scattered.
  EXPECT_GE(sharded, 3 * weights * kBytes / 2);
  EXPECT_LE(sharded, 3 * padded / 2);
}

TEST(Traffic, OfOneRankIsNone) {
  EXPECT_TRUE(of_full_rows(text_deck(), llama_config(2), 1).empty());
}

TEST(MicrobatchRows, CountRowsOfImagesAndWhatTheyBecome) {
  const ModelSpec model = make_model_spec(tiny_llava_config());  // 4 patches and a class token
  MicrobatchTokens tokens;
  for (int64_t image : {1, 2, 3})
    for (int64_t i = 0; i < 5; ++i) {
      tokens.words.push_back(i == 0 ? make_mask_word(0, kModalityText, 0)
                                    : make_mask_word(0, kModalityImage, image));
      tokens.is_target.push_back(i == 0);
    }
  tokens.items = 3;
  ReplicaLayout two;
  two.grids = {1, 1, {{.module = "vision", .encoder_dp = 2}, {.module = "llm", .tp = 2}}};

  const MicrobatchRows first = rows_of_microbatch(tokens, model, two, BidirectionalLayers::None);
  two.rank = 1;
  const MicrobatchRows second = rows_of_microbatch(tokens, model, two, BidirectionalLayers::None);

  // Images 0 and 2 are the first rank's, image 1 the second's; both need all features.
  EXPECT_EQ(first.of("vision").held.all(), 2 * 5);
  EXPECT_EQ(first.of("vision").read.all(), 2 * 4);
  EXPECT_EQ(second.of("vision").read.all(), 4);
  EXPECT_EQ(first.encoders.at("vision").features, (std::vector<int64_t>{8, 8}));
  EXPECT_EQ(second.encoders.at("vision").features, (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(first.encoders.at("vision").feature_gradients, (std::vector<int64_t>{8, 0}));
  EXPECT_EQ(first.text.held.all(), 15);
  EXPECT_EQ(first.text.read.all(), 3);
}

}  // namespace
}  // namespace zea::testing::test_traffic
