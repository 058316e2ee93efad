// SPDX-License-Identifier: Apache-2.0
// Facts of a layout for given samples: FLOPs of the slowest rank, idle time, and which ranks are
// named as idle.
#include "estimate/step_facts.hpp"

#include <gtest/gtest.h>

#include <sstream>

#include "core/error.hpp"
#include "estimate/describe.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_step_facts {
namespace {

constexpr const char* kText = R"({"model_type": "llama", "hidden_size": 24,
    "intermediate_size": 40, "head_dim": 6, "vocab_size": 40, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_hidden_layers": 4})";

Options deck() {
  Options options;
  options.data.row_tokens = 64;
  options.schedule.global_batch = 8;
  options.meshes["llm"].strategy = "no_shard";
  options.meshes["llm"].cp_block = 4;
  return options;
}

StepFacts facts(const Options& options, int ranks, const std::string& config = kText) {
  const Plan plan = make_plan(options, config, ranks);
  return facts_of(plan, synthetic_samples(plan));
}

TEST(StepFacts, OfOneRankAreThoseOfTheModel) {
  const StepFacts one = facts(deck(), 1);
  EXPECT_NEAR(one.slowest_flops, one.model_flops, 1e-9 * one.model_flops);
  EXPECT_NEAR(one.idle_share, 0, 1e-9);
  EXPECT_EQ(one.microbatches, 8);
  EXPECT_EQ(one.samples, 8);
  EXPECT_EQ(one.tokens, 8 * 64);
  EXPECT_EQ(one.fill, 1);
  const StepFacts images = facts(deck(), 1, tiny_llava_config());
  EXPECT_NEAR(images.slowest_flops, images.model_flops, 1e-9 * images.model_flops);
  EXPECT_EQ(images.items, 8);
}

TEST(StepFacts, CountRecomputedUnits) {
  Options options = deck();
  options.model.activation_checkpointing = AutoOption::of_count(1);
  const StepFacts again = facts(options, 1);
  EXPECT_GT(again.slowest_flops, 1.2 * again.model_flops);
  EXPECT_LT(again.slowest_flops, 4.0 / 3 * again.model_flops);
}

TEST(StepFacts, DivideByTheRanksOfALayout) {
  const double all = facts(deck(), 1).model_flops;
  Options options = deck();
  options.meshes["llm"].tp = 2;
  const StepFacts four = facts(options, 4);
  EXPECT_NEAR(four.slowest_flops, all / 4, 1e-9 * all);
  EXPECT_NEAR(four.idle_share, 0, 1e-9);
}

TEST(StepFacts, TellDistributionsOfTokensApart) {
  const double all = facts(deck(), 1).model_flops;
  double idle[2];
  for (const char* distribution : {"uniform", "zigzag"}) {
    Options options = deck();
    options.meshes["llm"].cp = 2;
    options.meshes["llm"].cp_distribution = distribution;
    options.meshes["llm"].cp_block = ModuleMeshOptions{}.cp_block;
    const StepFacts two = facts(options, 2);
    // Both ranks together have the model's FLOPs.
    EXPECT_NEAR(2 * two.slowest_flops * (1 - two.idle_share), all, 1e-6 * all) << distribution;
    idle[distribution[0] == 'z'] = two.idle_share;
  }
  EXPECT_GT(idle[0], 0.02);  // the second half sees the first
  EXPECT_LT(idle[1], 0.01);
}

TEST(StepFacts, KnowReplicasWithoutSamplesAndStageGroupsThatWait) {
  Options options = deck();
  options.schedule.global_batch = 6;
  EXPECT_NEAR(facts(options, 8).idle_share, 0.25, 1e-9);
  options.meshes["llm"].pp = 2;
  options.schedule.global_batch = 4;
  const double few = facts(options, 2).idle_share;
  options.schedule.global_batch = 32;
  const double many = facts(options, 2).idle_share;
  EXPECT_GT(few, 0.1);
  EXPECT_GT(few, many + 0.05);
}

TEST(StepFacts, ReadTheirSamplesAndNoOthers) {
  const Plan plan = make_plan(deck(), tiny_llava_config(), 1);
  StepSamples samples = synthetic_samples(plan);
  const SampleIndex with_image = samples.index[0];
  samples.index = {{.tokens = 10, .items = {}, .targets = 9}};
  samples.tokens = [](int64_t) {
    MicrobatchTokens text;
    text.words.assign(10, make_mask_word(0, kModalityText, 0));
    text.is_target.assign(10, true);
    text.is_target.back() = false;
    return text;
  };
  const StepFacts text = facts_of(plan, samples);
  EXPECT_EQ(text.tokens, 80);
  EXPECT_EQ(text.microbatches, 2);
  EXPECT_EQ(text.items, 0);
  EXPECT_NEAR(text.fill, 80.0 / 128, 1e-9);
  EXPECT_NE(describe_steps(plan, samples, text).find("none of these samples has an item of vision"),
            std::string::npos);
  EXPECT_EQ(with_image.items.of(0), 1);
}

TEST(StepFacts, CountEncodersThatStandAlone) {
  Options options = deck();
  options.mesh.placement = "disjoint";
  options.meshes["vision"].encoder_dp = 1;
  options.meshes["llm"].strategy = "full_shard";
  const StepFacts two = facts(options, 4, tiny_llava_config());
  ASSERT_EQ(two.traffic.size(), 2U);
  EXPECT_EQ(two.traffic[0].rank, 0);
  EXPECT_GT(two.traffic[0].sent.at("vision.dp_shard+encoder_dp+cp"), 0);
  EXPECT_GT(two.traffic[0].sent.at("vision.pp0>llm.pp0 outputs"), 0);
  EXPECT_EQ(two.most_sent().total(), std::max(two.traffic[0].total(), two.traffic[1].total()));
}

/// Overrides as the refusal names them, "mesh.placement=disjoint mesh.vision.encoder_dp=2".
void apply_overrides(Options& options, const std::string& overrides) {
  std::istringstream words(overrides);
  for (std::string word; words >> word;) {
    const std::string key = word.substr(0, word.find('=')), value = word.substr(key.size() + 1);
    if (key == "mesh.placement")
      options.mesh.placement = value;
    else
      options.meshes[key == "mesh.vision.encoder_dp" ? "vision" : "audio"].encoder_dp =
          std::stol(value);
  }
}

TEST(Plan, NamesPlacementsThatFitInOneRefusal) {
  const std::string config = tiny_llava_config({.audio = true});
  for (const char* asked : {"mesh.placement=disjoint", "mesh.placement=colocated",
                            "mesh.placement=disjoint mesh.vision.encoder_dp=1 "
                            "mesh.audio.encoder_dp=1"}) {
    Options options;
    options.schedule.global_batch = 4;
    apply_overrides(options, asked);
    std::string refusal;
    try {
      make_plan(options, config, 4);
    } catch (const PlanError& error) {
      refusal = error.what();
    }
    const std::string begin = "what fits 4 ranks: ";
    const size_t found = refusal.find(begin);
    ASSERT_NE(found, std::string::npos) << refusal;
    const std::string all = refusal.substr(found + begin.size());
    std::istringstream fitting(all.substr(0, all.find(" (")));
    int placements = 0;
    for (std::string one; std::getline(fitting, one, ';'); ++placements) {
      Options tried = options;
      apply_overrides(tried, one.substr(one.find("mesh.")));
      EXPECT_NO_THROW(make_plan(tried, config, 4)) << one;
    }
    EXPECT_EQ(placements, 3) << refusal;
  }
}

TEST(Plan, NamesRanksThatHaveNothingToCompute) {
  Options options;
  options.schedule.global_batch = 64;
  const std::string idle = describe(make_plan(options, kText, 200));
  EXPECT_NE(idle.find("warning: 136 of 200 ranks have nothing to compute: 64 samples of a batch "
                      "for 200 replicas; raise schedule.global_batch to 200"),
            std::string::npos)
      << idle;
  EXPECT_EQ(describe(make_plan(options, kText, 64)).find("warning: "), std::string::npos);
  options.schedule.global_batch = 2;
  options.meshes["llm"].tp = 2;
  EXPECT_NE(describe(make_plan(options, kText, 6)).find("warning: 2 of 6 ranks"),
            std::string::npos);
}

TEST(Layouts, StandSideBySide) {
  Options options = deck();
  const StepFacts one = facts(options, 2);
  options.meshes["llm"].tp = 2;
  const StepFacts tp = facts(options, 2);
  const std::string text =
      compare_layouts("a step of made-up samples", {{.name = "deck.toml", .facts = one},
                                                    {.name = "mesh.llm.tp=3", .refusal = "no"},
                                                    {.name = "mesh.llm.tp=2", .facts = tp}});
  EXPECT_NE(text.find("  [2] mesh.llm.tp=3: refused: no\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  [3]\n  ranks "), std::string::npos) << text;
  EXPECT_NE(text.find("in llm.tp "), std::string::npos) << text;
}

}  // namespace
}  // namespace zea::testing::test_step_facts
