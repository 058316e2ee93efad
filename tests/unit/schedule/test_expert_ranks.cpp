// SPDX-License-Identifier: Apache-2.0
// Plans in which ranks share the experts of mixtures: who has which experts, that the ranks of a
// group make the same computations in the same order, and what is refused.
#include <gtest/gtest.h>

#include <bit>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "estimate/describe.hpp"
#include "estimate/memory_estimate.hpp"
#include "estimate/step_samples.hpp"
#include "estimate/traffic.hpp"
#include "schedule/plan.hpp"
#include "spec/expert_needs.hpp"
#include "support/coverage.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::test_expert_ranks {
namespace {

using testing::tiny_llava_config;
using testing::with_experts;

std::string experts_config() {
  return with_experts(tiny_llava_config(), 4);
}

struct Layout {
  int64_t replicate, shard, cp, tp, ep;
  const char* strategy = "full_shard";
  int64_t etp = 0;
  int ranks() const { return static_cast<int>(replicate * shard * cp * tp); }
};

Options deck_of(const Layout& layout) {
  Options deck;
  deck.mesh.dp_replicate = layout.replicate;
  deck.mesh.dp_shard = layout.shard;
  ModuleMeshOptions& llm = deck.meshes["llm"];
  llm.cp = layout.cp;
  llm.tp = layout.tp;
  llm.ep = layout.ep;
  llm.etp = layout.etp;
  llm.strategy = deck.meshes["vision"].strategy = layout.strategy;
  return deck;
}

const Layout kLayouts[] = {
    {1, 4, 1, 1, 2},
    {1, 4, 1, 1, 4},
    {2, 2, 1, 1, 2, "hybrid_shard"},
    {2, 4, 1, 1, 2, "no_shard"},
    {1, 1, 4, 1, 2},
    {1, 2, 2, 1, 4},
    {1, 4, 2, 1, 4},
    {1, 2, 1, 2, 2},
    {2, 2, 2, 2, 4, "hybrid_shard_zero2"},
    {1, 1, 1, 2, 2, "no_shard", 1},
    {2, 2, 2, 2, 2, "hybrid_shard", 1},
    {1, 2, 1, 2, 4, "full_shard", 1},
    {1, 1, 2, 2, 4, "full_shard", 1},
};

TEST(ExpertRanks, HaveEveryElementOfEveryParameterOnce) {
  for (const std::string& config : {experts_config(), testing::tiny_qwen3_vl_moe_config()})
    for (Layout layout : kLayouts) {
      if (config != experts_config()) layout.ep = std::min<int64_t>(layout.ep, 2);
      if (layout.ep % layout.tp != 0) continue;
      SCOPED_TRACE(::testing::Message() << layout.replicate << " x " << layout.shard << " cp "
                                        << layout.cp << " tp " << layout.tp << " ep " << layout.ep);
      const Plan plan = make_plan(deck_of(layout), config, layout.ranks());
      std::vector<std::vector<Extent>> boxes(plan.model.params.size());
      int over_ep = 0;
      for (size_t g = 0; g < plan.buffers.size(); ++g) {
        const int buffer = static_cast<int>(g);
        over_ep += plan.buffers[g].is_over_ep;
        for (int rank = 0; rank < layout.ranks(); ++rank) {
          const int piece = plan.piece_rank(rank, buffer);
          for (const FlatPart& part :
               parts_in_range(plan.buffers[g], plan.own_range(rank, buffer))) {
            const ParamShard& cut = plan.cuts[part.param];
            if (!cut.is_first_holder(piece)) continue;
            const int param = cut.param_of(part.param, piece);
            for (PieceBox& box : boxes_of_piece(plan.model.params[param], cut, piece,
                                                part.param_begin, part.param_begin + part.elements))
              boxes[param].push_back(std::move(box.extent));
          }
        }
      }
      EXPECT_GT(over_ep, 0);
      for (size_t p = 0; p < boxes.size(); ++p)
        if (plan.model.params[p].part.length == 0) {  // else a part of a tensor
          ASSERT_TRUE(testing::covers_exactly_once(plan.model.params[p].shape, boxes[p]))
              << plan.model.params[p].name;
        }
    }
}

/// Groups of ranks are whole: each has all experts, and the rest of the shards have the same ones.
TEST(ExpertRanks, BuffersAreShardedOverTheRanksWithTheSameExperts) {
  const Plan plan = make_plan(deck_of({2, 4, 2, 1, 4, "hybrid_shard"}), experts_config(), 16);
  for (size_t g = 0; g < plan.buffers.size(); ++g) {
    if (plan.buffers[g].module != "llm") continue;
    const Sharding& sharding = plan.shardings[g];
    EXPECT_EQ(sharding.shards, plan.buffers[g].is_over_ep ? 2 : 8) << plan.buffers[g].name;
    EXPECT_EQ(sharding.replicas, 2);
    EXPECT_EQ(plan.buffers[g].name.ends_with(".experts"), plan.buffers[g].is_over_ep);
  }
}

/// The computations of the language model, in order.
std::vector<Action> shared_actions(const Plan& plan, const StepPlan& step, int rank) {
  std::vector<Action> own;
  for (const Action& action : plan.rank_step(step, rank).schedule.actions)
    if (action.unit >= 0 && plan.model.units[action.unit].kind == UnitKind::Block &&
        plan.model.units[action.unit].module == "llm" &&
        (action.kind == ActionKind::Forward || action.kind == ActionKind::Backward))
      own.push_back(action);
  return own;
}

/// Samples of 3 to 9 tokens, of which the first has an image.
std::vector<SampleIndex> few_samples(const ModelSpec& model) {
  std::vector<SampleIndex> index;
  for (int64_t s = 0; s < 5; ++s) {
    index.push_back({.tokens = 3 + s, .items = {}, .targets = 1});
    if (s == 0) index.back().items.add(0, 1, model.encoders[0].item_shape());
  }
  return index;
}

TEST(ExpertRanks, RanksOfAGroupComputeInTheSameOrder) {
  for (const bool is_frozen : {false, true})
    for (const Layout& layout : kLayouts) {
      Options deck = deck_of(layout);
      deck.llm.train = !is_frozen;
      deck.data.packing = false;
      const Plan plan = make_plan(deck, experts_config(), layout.ranks());
      for (const std::vector<int64_t>& samples :
           {std::vector<int64_t>{0, 1, 2}, {3}, {0, 1, 2, 3, 4, 1, 2}}) {
        const StepPlan step = plan.step_plan(0, samples, few_samples(plan.model));
        size_t computed = 0;
        for (int rank = 0; rank < layout.ranks(); ++rank) {
          const std::vector<Action> own = shared_actions(plan, step, rank);
          computed += own.size();
          for (const int other : plan.mesh.group(rank, "llm", {Axis::EpDpShard, Axis::EpCp}))
            EXPECT_EQ(own, shared_actions(plan, step, other)) << rank << " and " << other;
        }
        EXPECT_GT(computed, 0U);
      }
    }
}

TEST(ExpertRanks, MicrobatchesKnowTheTokensOfTheirGroup) {
  Options deck = deck_of({1, 4, 1, 1, 2});
  deck.data.packing = false;
  const Plan plan = make_plan(deck, experts_config(), 4);
  const StepPlan step = plan.step_plan(0, {0, 1, 2}, few_samples(plan.model));
  int joining = 0;
  for (size_t r = 0; r < 4; ++r)
    for (size_t m = 0; m < step.replicas[r].size(); ++m) {
      const MicrobatchPlan& own = step.replicas[r][m];
      ASSERT_EQ(own.expert_tokens.size(), 2U);
      EXPECT_EQ(own.expert_tokens[r % 2], own.tokens);
      EXPECT_EQ(own.expert_tokens[1 - r % 2], step.replicas[r ^ 1U][m].tokens);
      EXPECT_EQ(own.kind().has_samples, own.expert_tokens[0] + own.expert_tokens[1] > 0);
      joining += own.empty() && own.kind().has_samples;
    }
  EXPECT_GT(joining, 0);
}

/// A rank holds fewer experts; and the rows of the others, at most all that they choose.
TEST(ExpertRanks, MemoryHasFewerExpertsAndMoreRows) {
  const auto told = [&](int64_t ep) {
    const Plan plan = make_plan(deck_of({1, 4, 1, 1, ep, "no_shard"}), experts_config(), 4);
    return estimate_memory(plan, 0, {full_microbatch(plan)});
  };
  EXPECT_LT(told(2).parameters, told(1).parameters);
  EXPECT_LT(told(4).parameters, told(2).parameters);
  EXPECT_LT(told(2).states, told(1).states);
  EXPECT_GT(told(2).activations, told(1).activations);
  EXPECT_NE(describe(make_plan(deck_of({1, 4, 2, 1, 4}), experts_config(), 8))
                .find("ep 4 (2 cp ranks of 2 replicas share experts)"),
            std::string::npos);
}

/// Whole experts on tp ranks: the matrices have any width, and no rank gets the rows of others.
TEST(ExpertRanks, TpRanksMayHoldWholeExperts) {
  nlohmann::json config = nlohmann::json::parse(experts_config());
  config["text_config"].update({{"moe_intermediate_size", 33}});
  Options deck = deck_of({1, 2, 1, 2, 2, "no_shard", 1});
  const Plan plan = make_plan(deck, config.dump(), 4);
  EXPECT_FALSE(plan.model.expert_params().empty());
  for (const int param : plan.model.expert_params()) {
    EXPECT_EQ(plan.cuts[param].shape, plan.model.params[param].shape);
    EXPECT_EQ(plan.cuts[param].holders, 1);
  }
  EXPECT_FALSE(traffic_of_samples(plan, synthetic_samples(plan), 0).empty());
  const std::string told = describe(plan);
  EXPECT_NE(told.find("ep 2 (2 tp ranks of 1 cp ranks of 1 replicas share experts)\n"),
            std::string::npos)
      << told;
  deck.meshes["llm"].ep = 4;
  EXPECT_NE(describe(make_plan(deck, config.dump(), 4))
                .find("ep 4 (2 tp ranks of 1 cp ranks of 2 replicas share experts), dispatch by "),
            std::string::npos);
}

/// The share equals a count over all choices of experts: how often at least one is in the first of
/// equal parts.
TEST(ExpertRanks, ATokenGoesToAShareOfThem) {
  for (const int experts : {4, 6, 8})
    for (int chosen = 1; chosen <= experts; ++chosen)
      for (int parts = 1; parts <= experts; ++parts) {
        if (experts % parts != 0) continue;
        double choices = 0, hits = 0;
        for (unsigned choice = 0; choice < 1U << experts; ++choice) {
          if (std::popcount(choice) != chosen) continue;
          ++choices;
          hits += (choice & ((1U << (experts / parts)) - 1)) != 0;
        }
        const RouterSpec router{.experts = experts, .chosen = chosen};
        EXPECT_NEAR(detail::chosen_share(router, parts), hits / choices, 1e-12)
            << chosen << " of " << experts << " in " << parts;
      }
}

TEST(ExpertRanks, ExchangeTokensWhereThatSendsFewBytes) {
  const auto exchanges = [](int64_t ep, int64_t experts, DeviceKind device, const char* asked) {
    Options deck = deck_of({1, ep, 1, 1, ep});
    deck.run.device = device;
    deck.meshes["llm"].ep_dispatch = asked;
    const Plan plan =
        make_plan(deck, with_experts(tiny_llava_config(), experts), static_cast<int>(ep));
    const bool does = plan.mesh.grid("llm").ep_exchanges;
    const std::string told = describe(plan);
    EXPECT_EQ(told.find("dispatch by all-to-all (expected: ") != std::string::npos, does) << told;
    EXPECT_EQ(told.find("dispatch by all-gather (all-to-all: ") != std::string::npos, !does)
        << told;
    return does;
  };
  EXPECT_FALSE(exchanges(4, 4, DeviceKind::Cpu, "auto")) << "half of the bytes";
  EXPECT_TRUE(exchanges(8, 8, DeviceKind::Cpu, "auto")) << "a quarter";
  EXPECT_TRUE(exchanges(4, 4, DeviceKind::Cpu, "alltoall"));
  EXPECT_FALSE(exchanges(8, 8, DeviceKind::Cpu, "allgather"));
  EXPECT_FALSE(exchanges(8, 8, DeviceKind::Cuda, "auto")) << "the host would wait";
  EXPECT_TRUE(exchanges(16, 16, DeviceKind::Cuda, "auto"));
  Options deck = deck_of({1, 4, 2, 1, 8});
  deck.meshes["llm"].ep_dispatch = "alltoall";
  EXPECT_NE(describe(make_plan(deck, with_experts(tiny_llava_config(), 8), 8))
                .find("dispatch by all-to-all (expected: 2.00 of 8 ranks per token; in each "
                      "mixture's forward the host waits twice for counts of rows)"),
            std::string::npos);
}

void expect_refused(const Options& deck, const std::string& config, int ranks,
                    const std::string& sentence) {
  try {
    make_plan(deck, config, ranks);
    FAIL() << "accepted; expected: " << sentence;
  } catch (const PlanError& error) {
    EXPECT_NE(std::string(error.what()).find(sentence), std::string::npos) << error.what();
  }
}

TEST(ExpertRanks, LayoutsThatDoNotFitAreRefused) {
  expect_refused(deck_of({1, 4, 1, 1, 2}), tiny_llava_config(), 4,
                 "mesh.llm.ep = 2, but the model (llava) has no mixtures of experts; leave it out");
  expect_refused(
      deck_of({1, 3, 1, 1, 3}), experts_config(), 3,
      "mesh.llm.ep = 3 must divide the experts of each layer, and the ranks of cp (1) or "
      "cp x a part of dp_shard (3); allowed: 1");
  expect_refused(deck_of({2, 2, 2, 1, 8, "hybrid_shard"}), experts_config(), 8,
                 "cp x a part of dp_shard (2); allowed: 1, 2, 4");
  Options deck = deck_of({1, 4, 1, 1, 2});
  deck.meshes["vision"].ep = 2;
  expect_refused(deck, experts_config(), 4,
                 "mesh.vision.ep = 2: only the language model has experts; leave it out");
  expect_refused(
      deck_of({1, 2, 1, 2, 1, "full_shard", 1}), experts_config(), 4,
      "mesh.llm.ep = 1 with etp = 1 must divide the experts of each layer, and be tp (2) "
      "x a number that divides the ranks of cp (1) or cp x a part of dp_shard (2); "
      "allowed: 2, 4");
  expect_refused(deck_of({1, 1, 1, 4, 4, "full_shard", 2}), experts_config(), 4,
                 "mesh.llm.etp = 2 with tp = 4: experts are sharded over all tp ranks, or each tp "
                 "rank holds whole ones; allowed: 4, 1");
  deck = deck_of({1, 2, 1, 2, 4, "full_shard", 1});
  deck.meshes["llm"].reshard_after_forward = AutoOption::of_count(2);
  expect_refused(deck, experts_config(), 4, "ep = 4 with etp = 1 with reshard_after_forward = 2");
  deck = deck_of({1, 4, 1, 1, 2});
  deck.meshes["vision"].etp = 1;
  expect_refused(deck, experts_config(), 4,
                 "mesh.vision.etp = 1: only the language model has experts; leave it out");
  deck = deck_of({1, 4, 1, 1, 2});
  deck.meshes["llm"].reshard_after_forward = AutoOption::of_count(2);
  expect_refused(deck, experts_config(), 4, "mesh.llm.ep = 2 with reshard_after_forward = 2");
  deck = deck_of({1, 4, 1, 1, 2});
  deck.eval.every = 1;
  deck.eval.generate_tokens = 3;
  expect_refused(deck, experts_config(), 4, "mesh.llm.ep = 2 with eval.generate_tokens = 3");
  deck = deck_of({1, 4, 1, 1, 2});
  deck.optim.lr_factors = {"*.experts.3.* = 0.5"};
  expect_refused(deck, experts_config(), 4,
                 "other rules than language_model.model.layers.0.mlp.experts.0");
}

}  // namespace
}  // namespace zea::test_expert_ranks
