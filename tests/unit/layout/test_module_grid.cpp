// SPDX-License-Identifier: Apache-2.0
// A module's grid inside a replica: the position of each rank in both modules, the ranks that
// remain for images, and the allowed degrees.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "estimate/describe.hpp"
#include "schedule/plan.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_module_grid {
namespace {

using testing::tiny_gpt2_config;
using testing::tiny_llava_config;
using testing::with_gemma4_text;

const testing::TinyLlava kModel{.vision_heads = 4};

struct Degrees {
  int64_t tp, cp;
};

Options deck_of(Degrees llm, Degrees vision) {
  Options deck;
  deck.meshes["llm"].tp = llm.tp;
  deck.meshes["llm"].cp = llm.cp;
  deck.meshes["vision"].tp = vision.tp;
  deck.meshes["vision"].cp = vision.cp;
  return deck;
}

std::string refusal(const Options& deck, int ranks, const testing::TinyLlava& model = kModel) {
  try {
    make_plan(deck, tiny_llava_config(model), ranks);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const Options& deck, int ranks, const std::string& sentence,
                    const testing::TinyLlava& model = kModel) {
  const std::string said = refusal(deck, ranks, model);
  EXPECT_NE(said.find(sentence), std::string::npos) << said;
}

TEST(ModuleGrid, WhatVisionLeavesOverTakesImages) {
  const struct {
    Degrees llm, vision;
    int encoder_dp;
  } cases[] = {{{1, 1}, {1, 1}, 1}, {{2, 1}, {1, 1}, 2}, {{2, 2}, {1, 1}, 4}, {{2, 2}, {2, 1}, 2},
               {{2, 2}, {1, 2}, 2}, {{2, 2}, {4, 1}, 1}, {{2, 4}, {4, 1}, 2}, {{4, 2}, {1, 2}, 4},
               {{2, 3}, {2, 1}, 3}, {{2, 3}, {1, 3}, 2}, {{4, 2}, {2, 4}, 1}};
  for (const auto& one : cases) {
    const auto ranks = static_cast<int>(2 * one.llm.tp * one.llm.cp);
    const Plan plan = make_plan(deck_of(one.llm, one.vision), tiny_llava_config(kModel), ranks);
    const ModuleGrid &vision = plan.mesh.grid("vision"), &llm = plan.mesh.grid("llm");
    EXPECT_EQ(vision.encoder_dp, one.encoder_dp);
    EXPECT_EQ(llm.encoder_dp, 1);
    EXPECT_EQ(vision.ranks(), llm.ranks());
    EXPECT_EQ(plan.mesh.dp_shard, 2);
    EXPECT_EQ(plan.mesh.ranks_per_replica(), ranks / 2);
  }
}

/// "dp_shard encoder_dp cp tp" of each rank.
std::vector<std::string> places(const Plan& plan, const std::string& module) {
  std::vector<std::string> all;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const Coordinate coordinate = plan.mesh.coordinate(rank, module);
    all.push_back(std::to_string(coordinate.dp_shard) + std::to_string(coordinate.encoder_dp) +
                  std::to_string(coordinate.cp) + std::to_string(coordinate.tp));
  }
  return all;
}

TEST(ModuleGrid, MapsRanksWithTpFastestThenCpThenImages) {
  using Places = std::vector<std::string>;
  const std::string config = tiny_llava_config(kModel);
  const Plan plan = make_plan(deck_of({2, 2}, {1, 2}), config, 8);
  EXPECT_EQ(places(plan, "llm"),
            (Places{"0000", "0001", "0010", "0011", "1000", "1001", "1010", "1011"}));
  EXPECT_EQ(places(plan, "vision"),
            (Places{"0000", "0010", "0100", "0110", "1000", "1010", "1100", "1110"}));
  const Plan three = make_plan(deck_of({2, 3}, {1, 1}), config, 6);
  EXPECT_EQ(places(three, "llm"), (Places{"0000", "0001", "0010", "0011", "0020", "0021"}));
  EXPECT_EQ(places(three, "vision"), (Places{"0000", "0100", "0200", "0300", "0400", "0500"}));
}

TEST(ModuleGrid, DescribesTheRankMap) {
  const std::string text =
      describe(make_plan(deck_of({2, 2}, {2, 1}), tiny_llava_config(kModel), 8));
  for (const char* part :
       {"8 ranks = dp_replicate 1 x dp_shard 2",
        "rank 3:  vision(dp_replicate=0 dp_shard=0 pp=0 encoder_dp=1 cp=0 tp=1)  "
        "llm(dp_replicate=0 dp_shard=0 pp=0 encoder_dp=0 cp=1 tp=1)"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(ModuleGrid, KeyValueHeadsHaveSeveralHoldersWhereTheyAreFewerThanRanks) {
  for (const auto& [kv_heads, tp, holders] :
       {std::tuple{1, 4, 4}, {2, 4, 2}, {4, 4, 1}, {1, 2, 2}, {2, 2, 1}, {1, 1, 1}}) {
    const Plan plan =
        make_plan(deck_of({tp, 1}, {1, 1}), tiny_llava_config({.kv_heads = kv_heads}), tp);
    EXPECT_EQ(plan.mesh.grid("llm").kv_holders, holders) << kv_heads << " under " << tp;
    EXPECT_EQ(plan.mesh.grid("vision").kv_holders, 1);
  }
}

TEST(ModuleGrid, SequenceParallelComesWithTensorParallel) {
  const auto is_sliced = [](const Options& deck, int ranks, const std::string& module) {
    return make_plan(deck, tiny_llava_config(kModel), ranks)
        .token_shardings.at(module)
        .sequence_parallel;
  };
  Options deck = deck_of({2, 1}, {1, 1});
  EXPECT_TRUE(is_sliced(deck, 2, "llm"));
  EXPECT_FALSE(is_sliced(deck, 2, "vision"));
  deck.meshes["llm"].sequence_parallel = AutoOption::of(false);
  EXPECT_FALSE(is_sliced(deck, 2, "llm"));
  EXPECT_FALSE(is_sliced(Options{}, 1, "llm"));
}

TEST(ModuleGrid, RowsOfLinearsAreSentInChunksWhereTheyAreLarge) {
  const std::string config = R"({"model_type": "llama", "hidden_size": 1024,
      "intermediate_size": 64, "head_dim": 8, "vocab_size": 64, "num_attention_heads": 4,
      "num_key_value_heads": 4, "num_hidden_layers": 1})";
  Options deck;
  deck.meshes["llm"].tp = 2;
  const auto chunks_of = [&](int64_t row_tokens, int64_t rows, int ranks = 2) {
    deck.data.row_tokens = row_tokens;
    deck.data.rows_per_microbatch = rows;
    return make_plan(deck, config, ranks).mesh.grid("llm").tp_chunks.most;
  };
  EXPECT_EQ(chunks_of(16384, 1), 1) << "on processors";
  deck.run.device = DeviceKind::Cuda;
  EXPECT_EQ(chunks_of(16384, 1), 4);
  EXPECT_EQ(chunks_of(8192, 1), 2);
  EXPECT_EQ(chunks_of(8192, 2), 4);
  EXPECT_EQ(chunks_of(4096, 1), 1);
  deck.meshes["llm"].cp = 2;
  EXPECT_EQ(chunks_of(16384, 1, 4), 2);
  deck.meshes["llm"].tp_chunks = 3;
  EXPECT_EQ(chunks_of(4096, 1, 4), 3) << "as the deck says";
}

TEST(ModuleGrid, FewRowsAndNarrowOnesAreSentAtOnce) {
  const RowChunks chunks{.most = 4, .least_rows = 100, .least_width = 32};
  EXPECT_EQ(chunks.of(1000, 32), 4);
  EXPECT_EQ(chunks.of(399, 64), 3);
  EXPECT_EQ(chunks.of(199, 64), 1);
  EXPECT_EQ(chunks.of(0, 64), 1);
  EXPECT_EQ(chunks.of(1000, 31), 1);
  EXPECT_EQ(RowChunks{}.of(1000, 32), 1);
}

TEST(ModuleGrid, OnlyTpRanksSendRowsInChunks) {
  Options deck = deck_of({2, 1}, {2, 1});
  deck.meshes["vision"].tp_chunks = 3;
  const auto grid_of = [&](const std::string& module) {
    return make_plan(deck, tiny_llava_config(kModel), 2).mesh.grid(module);
  };
  EXPECT_EQ(grid_of("llm").tp_chunks.most, 1);
  EXPECT_EQ(grid_of("vision").tp_chunks.most, 3);
  deck.meshes["vision"].tp = 1;
  EXPECT_EQ(grid_of("vision").tp_chunks.most, 1);
}

TEST(ModuleGrid, DefaultsOfContextParallelAreGatheredKeysAndBlocksByCost) {
  const Plan plan = make_plan(deck_of({1, 4}, {1, 2}), tiny_llava_config(kModel), 4);
  const ContextOptions& context = plan.token_shardings.at("llm").context;
  EXPECT_EQ(context.ranks, 4);
  EXPECT_EQ(context.inner, 1);
  EXPECT_EQ(context.exchange, KvExchange::Gather);
  EXPECT_EQ(context.distribution.kind, TokenDistribution::MakespanMin);
  EXPECT_EQ(context.distribution.block, 128);
  EXPECT_TRUE(context.distribution.counts_attention);
  EXPECT_GT(context.distribution.linear_tiles_per_token, 0);
  EXPECT_EQ(plan.token_shardings.at("vision").context.ranks, 2);
}

TEST(ModuleGrid, ModesSayHowManyRanksExchangeHeadsAndHowKeysTravel) {
  const struct {
    const char* mode;
    int64_t asked;
    int inner;
    KvExchange exchange;
  } cases[] = {{"allgather_kv", 0, 1, KvExchange::Gather},
               {"ring", 0, 1, KvExchange::Ring},
               {"ulysses", 0, 4, KvExchange::Gather},
               {"ulysses_ring", 2, 2, KvExchange::Ring}};
  for (const auto& one : cases) {
    Options deck = deck_of({1, 4}, {1, 1});
    deck.meshes["llm"].cp_mode = one.mode;
    deck.meshes["llm"].cp_ulysses_ranks = one.asked;
    const Plan plan = make_plan(deck, tiny_llava_config(kModel), 4);
    const ContextOptions& context = plan.token_shardings.at("llm").context;
    EXPECT_EQ(context.inner, one.inner) << one.mode;
    EXPECT_EQ(plan.mesh.grid("llm").cp_inner, one.inner) << one.mode;
    EXPECT_EQ(context.exchange, one.exchange) << one.mode;
    EXPECT_EQ(context.distribution.counts_attention, one.inner < 4) << one.mode;
  }
}

TEST(ModuleGrid, OneRankExchangesNoHeadsWhateverTheModeAsks) {
  for (const int64_t asked : {0, 2}) {
    Options deck = deck_of({2, 1}, {1, 1});
    deck.meshes["llm"].cp_mode = "ulysses_ring";
    deck.meshes["llm"].cp_ulysses_ranks = asked;
    const Plan plan = make_plan(deck, tiny_llava_config(kModel), 2);
    EXPECT_EQ(plan.mesh.grid("llm").cp_inner, 1) << asked;
    EXPECT_EQ(plan.token_shardings.at("llm").context.inner, 1) << asked;
  }
}

TEST(ModuleGrid, SentencesNameTheAllowedValues) {
  expect_refused(deck_of({3, 1}, {1, 1}), 3, "allowed: 1, 2, 4");
  expect_refused(deck_of({5, 1}, {1, 1}), 5, "allowed: 1, 2, 4, 8", {.heads = 8});
  expect_refused(deck_of({4, 1}, {4, 1}), 4,
                 "mesh.vision.tp = 4 does not divide the 2 heads or rows of "
                 "vision_tower.encoder.layers.0.self_attn.q_proj.weight; allowed: 1, 2",
                 {});
  Options deck = deck_of({1, 3}, {1, 1});
  deck.meshes["llm"].cp_mode = "ulysses";
  expect_refused(deck, 3, "allowed: 1, 2, 4, or cp_mode = \"allgather_kv\" or \"ring\"");
  EXPECT_EQ(refusal(deck, 3, {.kv_heads = 3, .heads = 6}), "accepted");
  deck = deck_of({2, 2}, {1, 1});
  deck.meshes["llm"].cp_mode = "ulysses";
  EXPECT_EQ(refusal(deck, 4), "accepted");
}

TEST(ModuleGrid, AKeyValueHeadIsNeverCut) {
  // 6 heads over 3 KV heads: two ranks would cut the second KV head in half, and three or six have
  // no equal part of an MLP of 40.
  expect_refused(deck_of({2, 1}, {1, 1}), 2,
                 "mesh.llm.tp = 2 does not divide the 3 heads or rows of "
                 "language_model.model.layers.0.self_attn.k_proj.weight; allowed: 1",
                 {.kv_heads = 3, .heads = 6});
}

/// Four query heads; the KV heads of one kind of layer and of the other.
std::string with_key_heads(int64_t sliding, int64_t full) {
  nlohmann::json config =
      nlohmann::json::parse(with_gemma4_text(tiny_llava_config({.vision_heads = 4})));
  config["text_config"]["num_key_value_heads"] = sliding;
  config["text_config"]["num_global_key_value_heads"] = full;
  return config.dump();
}

TEST(ModuleGrid, OneKindOfLayerMayHaveFewerKeyHeadsThanRanks) {
  const auto holders = [](int64_t sliding, int64_t full) {
    const Plan plan = make_plan(deck_of({4, 1}, {1, 1}), with_key_heads(sliding, full), 4);
    return plan.mesh.grid("llm").kv_holders;
  };
  EXPECT_EQ(holders(4, 4), 1);
  EXPECT_EQ(holders(4, 1), 4);
  EXPECT_EQ(holders(2, 2), 2);
  try {
    holders(2, 1);
    FAIL();
  } catch (const PlanError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("mesh.llm.tp = 4: layers differ in their KV heads (1, 2), and tp ranks "
                        "repeat the heads of one kind of layer only; allowed: 1, 2"),
              std::string::npos)
        << error.what();
  }
}

TEST(ModuleGrid, HeadsOfEveryKindOfLayerAreExchanged) {
  Options deck = deck_of({1, 4}, {1, 1});
  deck.meshes["llm"].cp_mode = "ulysses";
  EXPECT_NO_THROW(make_plan(deck, with_key_heads(4, 2), 4));
  deck.meshes["llm"].cp = 2;
  EXPECT_NO_THROW(make_plan(deck, with_key_heads(4, 1), 2));
}

TEST(ModuleGrid, AVocabularyIsPaddedWhereItMust) {
  for (int64_t vocabulary : {37, 40, 42}) {
    const Plan plan =
        make_plan(deck_of({4, 1}, {1, 1}), tiny_llava_config({.vocabulary = vocabulary}), 4);
    const int head = plan.model.param_index("language_model.lm_head.weight");
    EXPECT_EQ(plan.cuts[head].shape, (Shape{(vocabulary + 3) / 4, 24})) << vocabulary;
  }
}

TEST(ModuleGrid, FaultsOfBothModulesAreShownTogether) {
  Options deck = deck_of({3, 2}, {1, 4});
  deck.meshes["vision"].cp_mode = "ulysses_ring";
  deck.meshes["llm"].cp_ulysses_ranks = 2;
  deck.mesh.placement = "disjoint";
  const std::string said = refusal(deck, 7);
  for (const char* part :
       {"mesh.llm.tp = 3", "mesh.llm.cp_ulysses_ranks = 2", "mesh.vision.cp_mode", "world size 7"})
    EXPECT_NE(said.find(part), std::string::npos) << said;
}

TEST(ModuleGrid, Gpt2TakesContextAndDataParallelism) {
  Options deck;
  deck.meshes["llm"].cp = 4;
  const Plan plan = make_plan(deck, tiny_gpt2_config(), 8);
  EXPECT_EQ(plan.mesh.dp_shard, 2);
  EXPECT_EQ(plan.mesh.grid("llm").cp, 4);
  EXPECT_GT(plan.token_shardings.at("llm").context.distribution.linear_tiles_per_token, 0);
}

}  // namespace
}  // namespace zea::test_module_grid
