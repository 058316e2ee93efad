// SPDX-License-Identifier: Apache-2.0
// The search for the fastest layouts: it finds what trying every layout finds, keeps what the deck
// sets, keeps to the memory limit, and says why others lose or are refused.
#include "estimate/layout_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/error.hpp"
#include "deck/deck.hpp"
#include "estimate/kernel_floor.hpp"
#include "estimate/memory_estimate.hpp"
#include "layout/rank_order.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_layout_search {
namespace {

constexpr size_t kBest = 10;
constexpr int64_t kMuch = int64_t{1} << 40;

constexpr const char* kText = R"({"model_type": "llama", "hidden_size": 24,
    "intermediate_size": 40, "head_dim": 6, "vocab_size": 40, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_hidden_layers": 4})";

constexpr const char* kExperts = R"({"model_type": "mixtral", "hidden_size": 24,
    "intermediate_size": 40, "head_dim": 6, "vocab_size": 40, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_hidden_layers": 2, "num_local_experts": 4,
    "num_experts_per_tok": 2})";

/// So wide that the search stacks the experts of a layer.
std::string wide_experts() {
  std::string config = kExperts;
  config.replace(config.find("24"), 2, "128");
  return config;
}

/// A processor of 1 GFLOP/s in nodes of four, with a slow network.
Hardware made_up() {
  Hardware hardware;
  hardware.identity.name = "made up";
  hardware.node = {.ranks = 4, .memory_gib = 1};
  DeviceRates& device = hardware.device;
  device.fp32_tflops = 0.001;
  device.bf16_tflops = 0.002;
  device.gemm_dims = {4, 64};
  device.gemm_efficiency = {0.4, 0.9};
  device.attention_efficiency = 0.5;
  device.sliced_attention_efficiency = 0.1;
  device.memory_gb_per_s = 1;
  device.launch_us = 2;
  hardware.inside = {.latency_us = 10, .hop_us = 1, .gb_per_s = 1};
  hardware.between = {.latency_us = 50, .hop_us = 10, .gb_per_s = 0.02};
  return hardware;
}

SearchRequest asked(const std::string& deck, int ranks, const std::string& config = kText) {
  return {.options = parse_deck("[model]\nweights = \"w\"\n[data]\ntrain = \"t\"\nrow_tokens = "
                                "512\n[schedule]\nglobal_batch = 12\n" +
                                    deck,
                                "deck", {}),
          .config_json = config,
          .profile = "",
          .ranks = ranks,
          .ranks_per_node = 4,
          .memory_bytes = kMuch,
          .hardware = made_up()};
}

SearchResult searched(const SearchRequest& request) {
  return search_layouts(request, synthetic_samples, kBest);
}

struct Tried {
  double seconds;
  size_t grids, sharding, recomputation;
  Options options;
  int64_t memory;
};

int64_t memory_of(const Plan& plan) {
  int64_t most = 0;
  for (const MemoryEstimate& group : estimate_groups(plan, predicted_microbatches(plan)))
    most = std::max(most, group.with_graphs());
  return most;
}

/// Every layout by itself: the first choice of recomputation that fits.
std::vector<Tried> all_layouts(const SearchRequest& request) {
  const ModelSpec model = model_of(request.options, request.config_json);
  const std::vector<detail::LayoutGrids> grids = detail::list_grids(request, model);
  const std::vector<AutoOption> recomputations = detail::list_recomputations(request);
  std::vector<Tried> all;
  for (size_t g = 0; g < grids.size(); ++g) {
    const auto shardings = detail::list_shardings(request, model, grids[g]);
    for (size_t s = 0; s < shardings.size(); ++s)
      for (size_t r = 0; r < recomputations.size(); ++r) {
        const Options options =
            detail::with_layout(request, model, grids[g], shardings[s], recomputations[r]);
        try {
          const Plan plan = make_plan(options, request.config_json, request.ranks);
          const int64_t memory = memory_of(plan);
          if (memory > memory_limit(request)) continue;
          const RankOrder order =
              order_ranks(plan.mesh, even_nodes(request.ranks, request.ranks_per_node), {});
          const StepTime time =
              step_time(plan, synthetic_samples(plan), request.hardware, order.node_of_logical);
          all.push_back({time.seconds, g, s, r, options, memory});
        } catch (const PlanError&) {
        }
        break;
      }
  }
  std::ranges::sort(all, {}, [](const Tried& tried) {
    return std::tuple(tried.seconds, tried.grids, tried.sharding, tried.recomputation);
  });
  return all;
}

void expect_exact(const SearchRequest& request, const std::string& what) {
  const std::vector<Tried> all = all_layouts(request);
  const SearchResult found = searched(request);
  ASSERT_EQ(found.best.size(), std::min(all.size(), kBest)) << what;
  for (size_t i = 0; i < found.best.size(); ++i) {
    EXPECT_DOUBLE_EQ(found.best[i].time.seconds, all[i].seconds) << what << " " << i;
    EXPECT_EQ(echo_deck(found.best[i].options), echo_deck(all[i].options)) << what << " " << i;
    EXPECT_EQ(found.best[i].memory, all[i].memory) << what << " " << i;
  }
}

bool has(const FoundLayout& layout, const std::string& override) {
  return std::ranges::count(layout.overrides, override) > 0;
}

}  // namespace

TEST(LayoutSearch, FindsWhatTryingEveryLayoutFinds) {
  const std::string images = tiny_llava_config(), both = tiny_llava_config({.audio = true});
  struct Deck {
    const char* name;
    std::string keys, config;
    std::vector<int> ranks;
  };
  const std::vector<int> few{1, 2, 3, 4, 6, 8};
  const Deck decks[] = {
      {"text", "", kText, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
      {"images", "", images, few},
      {"frozen encoder", "[model.vision]\ntrain = false\n", images, few},
      {"images, tp 2", "[mesh.llm]\ntp = 2\n", images, {10, 12, 14, 16}},
      {"images and sound", "[mesh.llm]\ncp = 1\n", both, {1, 2, 3, 4, 5}},
      {"colocated", "[mesh]\nplacement = \"colocated\"\n[mesh.llm]\ncp = 1\n", both, {2, 3, 6, 8}},
      {"sharded", "[mesh.llm]\nstrategy = \"full_shard\"\n", kText, {8, 12, 16}},
      {"muon", "[optim]\nkind = \"muon\"\n[mesh.llm]\npp = 2\n", kText, {2, 4, 6, 8}},
      {"bf16", "[precision]\npreset = \"bf16\"\n", kText, {4, 8, 16}},
      {"experts", "", kExperts, {2, 4, 6, 8}},
      {"wide experts", "", wide_experts(), {2, 4, 8}},
      {"zero bubble",
       "[mesh]\nschedule = \"zero_bubble\"\n[mesh.llm]\npp = 4\n",
       kText,
       {4, 8, 12, 16}},
  };
  for (const Deck& deck : decks)
    for (const int ranks : deck.ranks)
      expect_exact(asked(deck.keys, ranks, deck.config),
                   std::string(deck.name) + " on " + std::to_string(ranks));
}

/// Over slow links, tokens travel rather than experts of many parameters.
TEST(LayoutSearch, SharesExperts) {
  std::string config = kExperts;
  const std::string narrow = "\"intermediate_size\": 40";
  config.replace(config.find(narrow), narrow.size(), "\"intermediate_size\": 4000");
  SearchRequest request =
      asked("[mesh.llm]\ntp = 1\ncp = 1\npp = 1\nstrategy = \"full_shard\"\n", 4, config);
  request.hardware.inside.gb_per_s = 1e-3;
  EXPECT_TRUE(has(searched(request).best.front(), "mesh.llm.ep=4"))
      << describe_search(request, searched(request));
  request.options.given.insert("mesh.llm.ep");
  for (const FoundLayout& layout : searched(request).best)
    EXPECT_EQ(layout.options.meshes["llm"].ep, 1);
}

TEST(LayoutSearch, BoundsGridsByTheirKernels) {
  for (const bool has_audio : {false, true}) {
    const SearchRequest request = asked("", 4, tiny_llava_config({.audio = has_audio}));
    const ModelSpec model = model_of(request.options, request.config_json);
    int bounded = 0;
    for (const detail::LayoutGrids& grids : detail::list_grids(request, model)) {
      const auto sharding = detail::list_shardings(request, model, grids).front();
      try {
        const Plan plan = make_plan_without_slots(
            detail::with_layout(request, model, grids, sharding, AutoOption::of_count(0)), model,
            request.config_json, request.ranks);
        const StepSamples samples = synthetic_samples(plan);
        const detail::StepRows rows(samples, model);
        const detail::StageUnits stages = detail::decoder_stages(plan);
        const double least = detail::least_seconds(
            grids, detail::rank_seconds(plan, grids.decoder.cp, samples, rows, request.hardware),
            &stages, model, rows, request);
        DistributedSteps steps(samples);
        const StepTimer timer(plan, samples, steps, request.hardware, even_nodes(request.ranks, 4));
        EXPECT_LT(least, timer.bound(plan));
        EXPECT_GT(least, 0);
        ++bounded;
      } catch (const PlanError&) {
      }
    }
    EXPECT_GT(bounded, 20);
  }
}

void expect_exact_within_memory(const SearchRequest& free) {
  const std::vector<Tried> all = all_layouts(free);
  const auto least = std::ranges::min(all, {}, &Tried::memory).memory;
  const auto most = std::ranges::max(all, {}, &Tried::memory).memory;
  for (const double share : {0.1, 0.3, 0.6}) {
    SearchRequest request = free;
    request.memory_bytes = least + static_cast<int64_t>(share * static_cast<double>(most - least));
    expect_exact(request, "share " + std::to_string(share));
    const SearchResult found = searched(request);
    for (const FoundLayout& layout : found.best) EXPECT_LE(layout.memory, request.memory_bytes);
    for (const RefusedLayout& refused : found.refused) {
      EXPECT_EQ(refused.reason.find("exceeds memory by "), 0U) << refused.reason;
      EXPECT_LE(refused.seconds, found.best.back().time.seconds);
    }
  }
}

TEST(LayoutSearch, IsExactWithinMemory) {
  expect_exact_within_memory(asked("", 4, tiny_llava_config()));
  expect_exact_within_memory(asked("", 4, wide_experts()));
  expect_exact_within_memory(asked("[mesh.llm]\ncp = 1\n", 8));
}

TEST(LayoutSearch, StacksExpertsWhereThatChangesNothing) {
  const SearchRequest request = asked("", 4, wide_experts());
  const auto params = [](const SearchRequest& of) {
    return detail::searched_model(of).params.size();
  };
  const size_t all = model_of(request.options, request.config_json).params.size();
  EXPECT_LT(params(request), all);
  for (const char* keys :
       {"[optim]\nkind = \"muon\"\n", "[optim]\nkind = \"adamw_8bit\"\n",
        "[optim]\nfrozen = [\"*.experts.0.*\"]\n", "[mesh.llm]\nflatten_parameters = false\n"})
    EXPECT_EQ(params(asked(keys, 4, wide_experts())), all) << keys;
}

TEST(LayoutSearch, RecomputesOnlyWhereMemoryAsksForIt) {
  const SearchRequest free = asked("[mesh.llm]\ntp = 1\ncp = 1\npp = 1\n", 2);
  for (const FoundLayout& layout : searched(free).best)
    EXPECT_EQ(layout.options.model.activation_checkpointing, AutoOption::of_count(0));
  SearchRequest tight = free;
  int64_t least = kMuch;
  for (const Tried& tried : all_layouts(free)) least = std::min(least, tried.memory);
  tight.memory_bytes = least - 1;
  const SearchResult found = searched(tight);
  ASSERT_FALSE(found.best.empty());
  for (const FoundLayout& layout : found.best)
    EXPECT_NE(layout.options.model.activation_checkpointing, AutoOption::of_count(0));
}

TEST(LayoutSearch, SaysThatNothingFits) {
  SearchRequest request = asked("", 4);
  request.memory_bytes = 1000;
  const SearchResult found = searched(request);
  EXPECT_TRUE(found.best.empty());
  ASSERT_FALSE(found.refused.empty());
  const std::string text = describe_search(request, found);
  EXPECT_NE(text.find("none fits; the fastest that do not"), std::string::npos) << text;
  EXPECT_NE(text.find(" bytes by what ranks own alone"), std::string::npos) << text;
  EXPECT_EQ(nlohmann::json::parse(search_json(request, found))["layouts"].size(), 0U);
}

TEST(LayoutSearch, RefusesDecksWithoutAnyLayout) {
  try {
    searched(asked("[mesh.llm]\ntp = 4\npp = 2\n", 4));
    FAIL() << "eight ranks of a replica";
  } catch (const PlanError& error) {
    EXPECT_NE(std::string(error.what()).find("no layout of 4 ranks can be planned"),
              std::string::npos)
        << error.what();
  }
}

TEST(LayoutSearch, KeepsWhatTheDeckSets) {
  const SearchRequest request = asked(
      "[mesh]\nschedule = \"1f1b\"\ndp_replicate = 2\n[mesh.llm]\ntp = 2\ncp = 1\n"
      "strategy = \"hybrid_shard\"\n[mesh.vision]\nencoder_dp = 1\nstrategy = \"no_shard\"\n",
      16, tiny_llava_config());
  const SearchResult found = searched(request);
  ASSERT_FALSE(found.best.empty());
  for (const FoundLayout& layout : found.best) {
    const Options& options = layout.options;
    EXPECT_EQ(options.mesh.schedule, PipelineSchedule::OneFOneB);
    EXPECT_EQ(options.mesh.dp_replicate, 2);
    EXPECT_EQ(options.meshes["llm"].tp, 2);
    EXPECT_EQ(options.meshes["llm"].cp, 1);
    EXPECT_EQ(options.meshes["llm"].strategy, ShardingStrategy::HybridShard);
    EXPECT_EQ(options.meshes["vision"].encoder_dp, 1);
    EXPECT_EQ(options.meshes["vision"].strategy, ShardingStrategy::NoShard);
    for (const std::string& override : layout.overrides)
      EXPECT_EQ(override.find("mesh.llm.tp"), std::string::npos);
  }
}

TEST(LayoutSearch, PrefersWhatTheHardwareIsGoodAt) {
  // A network between nodes that hardly carries anything: a copy of the model in each node.
  SearchRequest request = asked("[mesh.llm]\ntp = 1\ncp = 1\npp = 1\n", 8);
  request.hardware.between.gb_per_s = 1e-5;
  const SearchResult slow = searched(request);
  const SearchResult fast = [&] {
    SearchRequest other = request;
    other.hardware.between = other.hardware.inside;
    return searched(other);
  }();
  EXPECT_GT(slow.best.front().time.seconds, 2 * fast.best.front().time.seconds);
  EXPECT_GT(slow.best.front().between_nodes, 0);
  // Few samples and free messages inside a node: cut tensors rather than leave ranks idle.
  request = asked("[mesh.llm]\ncp = 1\n", 4);
  request.options.schedule.global_batch = 1;
  request.hardware.inside = {.latency_us = 0, .hop_us = 0, .gb_per_s = 1e6};
  request.hardware.device.launch_us = 0;
  request.hardware.device.gemm_efficiency = {0.9, 0.9};
  const FoundLayout best = searched(request).best.front();
  EXPECT_TRUE(has(best, "mesh.llm.tp=4")) << describe_search(request, searched(request));
}

TEST(LayoutSearch, SaysWhyOthersLoseAndWritesDecks) {
  const SearchRequest request = asked("[mesh.llm]\ncp = 1\n", 4, tiny_llava_config());
  const SearchResult found = searched(request);
  ASSERT_EQ(found.best.size(), kBest);
  EXPECT_LT(found.timed, found.grids * 20);
  const std::string text = describe_search(request, found);
  EXPECT_NE(text.find("layouts of 4 ranks, 4 a node, on made up (published figures)"),
            std::string::npos)
      << text;
  const auto json = nlohmann::json::parse(search_json(request, found));
  ASSERT_EQ(json["layouts"].size(), kBest);
  EXPECT_EQ(json["layouts"][0]["why"], "");
  for (size_t i = 0; i < kBest; ++i) {
    const FoundLayout& layout = found.best[i];
    EXPECT_DOUBLE_EQ(json["layouts"][i]["seconds"], layout.time.seconds);
    EXPECT_EQ(json["layouts"][i]["why"].get<std::string>().empty(), i == 0);
    const std::string deck = deck_of_layout(request, layout);
    const Options read = parse_deck(deck, "written", {});
    EXPECT_EQ(echo_deck(read), echo_deck(layout.options)) << deck;
    EXPECT_EQ(read.given.contains("mesh.llm.cp"), true);
    // The overrides lead from the asked deck to the same layout.
    EXPECT_EQ(echo_deck(parse_deck(deck_of_layout(request, {.options = request.options}), "asked",
                                   layout.overrides)),
              echo_deck(layout.options));
  }
}

}  // namespace zea::testing::test_layout_search
