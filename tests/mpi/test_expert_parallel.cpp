// SPDX-License-Identifier: Apache-2.0
// Ranks that share the experts of mixtures train as one rank does: in fp64, on grids that pair ep
// with every strategy and axis; with optimizers of whole matrices and of blocks, adapters, text
// alone, replicas without samples, and tokens that all choose the experts of one rank. Tokens are
// gathered, or exchanged with the ranks of their experts. Pipelines: test_pipelines.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "estimate/memory_estimate.hpp"
#include "estimate/traffic.hpp"
#include "support/compared_run.hpp"
#include "support/expert_layout.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/stopped_run.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::testing::test_expert_parallel {
namespace {

using Layout = ExpertLayout;

constexpr Layout kLayouts[] = {
    {"all of dp_shard", 4, 4},
    {"half of dp_shard", 4, 2},
    {"half of dp_shard, no shards", 4, 2, "no_shard"},
    {"half of dp_shard, ZeRO-2", 4, 2, "shard_grad_op"},
    {"hybrid", 4, 2, "hybrid_shard", 1, 1, 2},
    {"hybrid with shards", 8, 2, "hybrid_shard_zero2", 1, 1, 2},
    {"replicas with shares of experts", 8, 2, "no_shard", 1, 1, 2},
    {"cp", 2, 2, "full_shard", 1, 2},
    {"half of cp", 8, 2, "full_shard", 1, 4, 1, "allgather_kv"},
    {"cp and dp_shard", 8, 4, "full_shard", 1, 2, 1, "ulysses"},
    {"cp in two levels", 8, 4, "full_shard", 1, 4, 1, "ulysses_ring"},
    {"cp and half of dp_shard, no shards", 8, 4, "no_shard", 1, 2},
    {"tp", 4, 2, "full_shard", 2},
    {"tp, every rank all tokens", 4, 2, "no_shard", 2, 1, 1, "ring", false},
    {"tp and cp", 8, 4, "full_shard", 2, 2},
    {"tp and hybrid", 8, 2, "hybrid_shard", 2, 1, 2},
};

std::string experts_config() {
  return with_experts(tiny_llava_config({.kv_heads = 2}), 4);
}

TinyRunOptions base_run(const std::string& config) {
  TinyRunOptions run;
  run.config_json = config;
  run.steps = 3;
  run.deck.precision.preset = "fp64";
  run.deck.data.row_tokens = 24;
  run.deck.optim.lr = 1e-2;
  run.deck.optim.warmup_steps = 2;
  run.deck.optim.weight_decay = 0.1;
  run.deck.optim.clip_norm = 0.5;
  run.deck.schedule = {.steps = run.steps, .global_batch = 7};
  return run;
}

MemoryDataset dataset_of(const TinyRunOptions& run, const std::vector<int>& images = {1, 0, 2}) {
  ModelSpec model = make_model_spec(run.config_json);
  if (run.remake) run.remake(model);
  return make_tiny_dataset(model, 16, images, 5);
}

class ExpertParallel : public ::testing::Test {
 protected:
  /// Compares `run` on layouts with one rank.
  void expect_equal_one_rank(const TinyRunOptions& run, const std::vector<Layout>& layouts,
                             const std::vector<int>& images = {1, 0, 2}) {
    const MemoryDataset dataset = dataset_of(run, images);
    const ComparedResult expected = run_compared(alone_, make_mpi_collectives, dataset, run);
    sweep(make_trials(layouts), [&](const Communicator& part, const Trial& trial) {
      const ComparedResult got =
          run_compared(part, trial.make, dataset, on_layout(run, layouts[trial.layout]));
      if (part.rank() == 0) expect_equal(got, expected);
    });
  }

  const Communicator alone_ = world().communicator().split(world().rank(), "alone");
};

TEST_F(ExpertParallel, EveryLayoutTrainsAsOneRank) {
  expect_equal_one_rank(base_run(experts_config()), {std::begin(kLayouts), std::end(kLayouts)});
}

TEST_F(ExpertParallel, RanksThatExchangeTokensDo) {
  const Layout all = exchanging({"all of dp_shard", 4, 4}),
               half = exchanging({"half of dp_shard", 4, 2, "no_shard"}),
               hybrid = exchanging({"hybrid", 8, 2, "hybrid_shard_zero2", 1, 1, 2}),
               cp = exchanging({"half of cp", 8, 2, "full_shard", 1, 4, 1, "allgather_kv"}),
               both = exchanging({"cp and dp_shard", 8, 4, "full_shard", 1, 2, 1, "ulysses"}),
               levels = exchanging({"cp in two levels", 8, 4, "no_shard", 1, 4, 1, "ulysses_ring"}),
               tp = exchanging({"tp and cp", 8, 4, "full_shard", 2, 2}),
               whole = exchanging({"whole rows", 4, 2, "no_shard", 2, 1, 1, "ring", false});
  TinyRunOptions run = base_run(experts_config());
  expect_equal_one_rank(run, {all, half, hybrid, cp, both, levels, tp, whole});
  run.deck.model.activation_checkpointing = AutoOption::of_count(2);
  run.deck.llm.lora = {.targets = {"q_proj", "gate", "*.experts.*", "*shared*"}, .rank = 3};
  run.deck.data.packing = false;  // some replicas have no samples
  run.deck.schedule.global_batch = 3;
  expect_equal_one_rank(run, {all, both, tp});
  TinyRunOptions frozen = base_run(experts_config());  // texts join the backward of images
  frozen.deck.llm.train = false;
  frozen.deck.data.packing = frozen.deck.data.shuffle = false;
  frozen.deck.schedule.global_batch = 5;
  expect_equal_one_rank(frozen, {all, both}, {0, 1, 0});
  TinyRunOptions biased = base_run(with_gpt_oss(tiny_llava_config({.kv_heads = 2}), 4));
  biased.deck.llm.lora = {.targets = {"mlp.*"}, .rank = 3};
  expect_equal_one_rank(biased, {half, both});
}

TEST_F(ExpertParallel, TpRanksWithWholeExpertsDo) {
  const Layout tp = over_tp({"tp", 4, 2, "full_shard", 2}),
               whole = over_tp({"whole rows", 4, 4, "shard_grad_op", 2, 1, 1, "ring", false}),
               four = over_tp({"four tp ranks", 4, 4, "no_shard", 4}),
               hybrid = over_tp({"hybrid", 8, 2, "hybrid_shard", 2, 1, 2}),
               both = over_tp({"tp, cp and dp_shard", 8, 8, "full_shard", 2, 2}),
               sent = exchanging(both), sent_whole = exchanging(whole);
  Layout pairs = over_tp({"tp, resharded to pairs", 8, 2, "full_shard", 2});
  pairs.subgroup = 2;
  TinyRunOptions run = base_run(with_experts(tiny_llava_config({.kv_heads = 2}), 8, 3));
  expect_equal_one_rank(run, {tp, whole, four, hybrid, both, pairs, sent, sent_whole});
  run.deck.model.activation_checkpointing = AutoOption::of_count(2);
  run.deck.llm.lora = {.targets = {"q_proj", "gate", "*.experts.*", "*shared*"}, .rank = 3};
  run.deck.data.packing = false;  // some replicas have no samples
  run.deck.schedule.global_batch = 3;
  expect_equal_one_rank(run, {tp, sent});
  TinyRunOptions frozen = base_run(experts_config());  // texts join the backward of images
  frozen.deck.llm.train = false;
  frozen.deck.data.packing = frozen.deck.data.shuffle = false;
  frozen.deck.schedule.global_batch = 5;
  expect_equal_one_rank(frozen, {sent_whole}, {0, 1, 0});
  TinyRunOptions biased = base_run(with_gpt_oss(tiny_llava_config({.kv_heads = 2}), 8));
  expect_equal_one_rank(biased, {whole, sent});
  biased.deck.llm.lora = {.targets = {"mlp.*"}, .rank = 3};
  expect_equal_one_rank(biased, {tp});
  expect_equal_one_rank(base_run(with_latent_attention(tiny_llava_config())), {tp});
  TinyRunOptions stacked = base_run(tiny_qwen3_vl_moe_config());
  stacked.remake = shrink_images;
  stacked.deck.data.row_tokens = 80;
  expect_equal_one_rank(stacked, {hybrid}, {2, 1, 0});
}

TEST_F(ExpertParallel, StackedExpertsDo) {
  TinyRunOptions run = base_run(tiny_qwen3_vl_moe_config());
  run.remake = shrink_images;
  run.deck.data.row_tokens = 80;
  expect_equal_one_rank(run,
                        {{"three ranks", 3, 3},
                         {"half of dp_shard", 4, 2},
                         {"cp and dp_shard", 6, 6, "full_shard", 1, 2},
                         {"tp", 4, 2, "no_shard", 2},
                         {"hybrid", 4, 2, "hybrid_shard", 1, 1, 2}},
                        {2, 1, 0});
}

TEST_F(ExpertParallel, ExpertsBesideTwoEncodersDo) {
  TinyRunOptions run = base_run(tiny_qwen3_omni_config());
  run.remake = shrink_images;
  run.deck.data.row_tokens = 90;
  expect_equal_one_rank(run, {{"half of dp_shard", 4, 2},
                              {"cp and dp_shard", 6, 6, "full_shard", 1, 2},
                              {"tp", 4, 2, "no_shard", 2}});
}

TEST_F(ExpertParallel, BiasedExpertsDo) {
  expect_equal_one_rank(base_run(with_gpt_oss(tiny_llava_config({.kv_heads = 2}), 4)),
                        {{"half of dp_shard", 4, 2},
                         {"cp and dp_shard", 8, 4, "full_shard", 1, 2},
                         {"ulysses", 4, 4, "no_shard", 1, 2, 1, "ulysses"},
                         {"tp", 4, 2, "full_shard", 2},
                         {"tp, every rank all tokens", 4, 2, "no_shard", 2, 1, 1, "ring", false},
                         {"tp and cp", 8, 4, "full_shard", 2, 2},
                         {"hybrid", 4, 2, "hybrid_shard", 1, 1, 2}});
}

TEST_F(ExpertParallel, ExpertsBesideLatentAttentionDo) {
  expect_equal_one_rank(base_run(with_latent_attention(tiny_llava_config())),
                        {{"half of dp_shard", 4, 2},
                         {"cp and dp_shard", 8, 4, "full_shard", 1, 2},
                         {"tp", 4, 2, "full_shard", 2},
                         {"tp, every rank all tokens", 4, 2, "no_shard", 2, 1, 1, "ring", false},
                         {"ulysses", 4, 4, "no_shard", 1, 2, 1, "ulysses"},
                         {"tp and cp", 8, 4, "full_shard", 2, 2}});
}

/// Gemma 4 scales the router's inputs and each expert, and has norms around the experts.
TEST_F(ExpertParallel, ExpertsBesideMlpsDo) {
  const Layout half{"half of dp_shard", 4, 2}, tp{"tp", 4, 2, "full_shard", 2},
      both{"cp and dp_shard", 8, 4, "full_shard", 1, 2};
  TinyRunOptions run =
      base_run(with_gemma4_text(tiny_llava_config({.kv_heads = 2}), {.experts = 4}));
  run.deck.optim.eps = 1;  // gradients are large, and Adam would turn rounding errors into updates
  expect_equal_one_rank(run, {half, tp, both, exchanging(half), exchanging(both), over_tp(tp),
                              exchanging(over_tp({"over tp and dp_shard", 4, 4, "no_shard", 2}))});
  run.deck.model.activation_checkpointing = AutoOption::of_count(2);
  run.deck.data.packing = false;  // some replicas have no samples
  run.deck.schedule.global_batch = 3;
  expect_equal_one_rank(run, {half, exchanging(both), over_tp(tp)});
  run.deck.llm.lora = {.targets = {"*"}, .rank = 3};
  expect_equal_one_rank(run, {half, tp, exchanging(both), over_tp(tp)});
}

/// Some replicas have no samples in some microbatches: they compute experts for the others.
TEST_F(ExpertParallel, ReplicasWithoutSamplesJoin) {
  TinyRunOptions run = base_run(experts_config());
  run.deck.data.packing = false;
  run.deck.schedule.global_batch = 3;
  expect_equal_one_rank(run, {{"all of dp_shard", 4, 4},
                              {"half of it", 4, 2, "no_shard"},
                              {"cp and dp_shard", 8, 4, "full_shard", 1, 2},
                              {"half of cp", 8, 2, "full_shard", 1, 4},
                              {"tp", 8, 4, "full_shard", 2}});
}

/// The language model is frozen: microbatches of text alone have no gradient of their own.
TEST_F(ExpertParallel, MicrobatchesOfTextJoinTheBackwardOfImages) {
  TinyRunOptions run = base_run(experts_config());
  run.deck.llm.train = false;
  run.deck.data.packing = run.deck.data.shuffle = false;  // every step has an image
  run.deck.schedule.global_batch = 5;
  const std::vector<Layout> layouts{{"all of dp_shard", 4, 4},
                                    {"half of it", 4, 2, "no_shard"},
                                    {"tp and cp", 8, 4, "full_shard", 2, 2}};
  expect_equal_one_rank(run, layouts, {0, 1, 0});
  run.deck.model.activation_checkpointing = AutoOption::of_count(1);
  expect_equal_one_rank(run, layouts, {0, 1, 0});
}

TEST_F(ExpertParallel, AdaptersBesideExpertsDo) {
  TinyRunOptions run = base_run(experts_config());
  run.deck.llm.lora = {.targets = {"q_proj", "o_proj"}, .rank = 3, .dropout = 0.3};
  run.deck.model.activation_checkpointing = AutoOption::of_count(2);
  expect_equal_one_rank(run, {{"all of dp_shard", 4, 4}, {"tp and cp", 8, 2, "no_shard", 2, 2}});
}

TEST_F(ExpertParallel, AdaptersOfEachExpertDo) {
  TinyRunOptions run = base_run(experts_config());
  run.deck.llm.lora = {.targets = {"q_proj", "gate", "*.experts.*", "*shared*"}, .rank = 3};
  expect_equal_one_rank(run, {std::begin(kLayouts), std::end(kLayouts)});
  run.deck.model.activation_checkpointing = AutoOption::of_count(2);
  run.deck.data.packing = false;  // some replicas have no samples
  run.deck.schedule.global_batch = 3;
  expect_equal_one_rank(run, {{"all of dp_shard", 4, 4},
                              {"cp and dp_shard", 8, 4, "full_shard", 1, 2},
                              {"tp", 8, 4, "full_shard", 2}});
}

TEST_F(ExpertParallel, AdaptersOfStackedExpertsDo) {
  const std::vector<Layout> layouts{{"half of dp_shard", 4, 2},
                                    {"cp and dp_shard", 8, 4, "full_shard", 1, 2},
                                    {"ulysses", 4, 4, "no_shard", 1, 2, 1, "ulysses"},
                                    {"tp", 4, 2, "no_shard", 2},
                                    {"tp and cp", 8, 4, "full_shard", 2, 2},
                                    {"hybrid", 4, 2, "hybrid_shard", 1, 1, 2}};
  TinyRunOptions stacked = base_run(with_gpt_oss(tiny_llava_config({.kv_heads = 2}), 4));
  stacked.deck.llm.lora = {.targets = {"mlp.*"}, .rank = 3};
  expect_equal_one_rank(stacked, layouts);
  TinyRunOptions split = base_run(experts_config());  // in files; adapters stack them
  split.deck.llm.lora = {.targets = {"experts.gate_up_proj", "experts.down_proj"}, .rank = 3};
  expect_equal_one_rank(split, layouts);
}

TEST_F(ExpertParallel, SeveralUnitsAndBuffersOfEachParameterDo) {
  TinyRunOptions run = base_run(experts_config());
  run.deck.meshes["llm"].wrap_units = 2;
  expect_equal_one_rank(run, {{"half of dp_shard", 4, 2}});
  run.deck.meshes["llm"].flatten_parameters = false;
  expect_equal_one_rank(run, {{"half of dp_shard", 4, 2}, {"tp", 4, 2, "full_shard", 2}});
}

TEST_F(ExpertParallel, MuonUpdatesEachExpertsMatrices) {
  const auto with_muon = [](TinyRunOptions run) {
    run.deck.optim.kind = "muon";
    run.deck.optim.momentum = 0.95;
    return run;
  };
  const Layout half{"half of dp_shard", 4, 2}, tp{"tp", 4, 2, "full_shard", 2},
      hybrid{"hybrid", 8, 2, "hybrid_shard", 1, 1, 2},
      over = over_tp({"over tp", 4, 2, "full_shard", 2}),
      cp{"cp and dp_shard", 8, 4, "no_shard", 1, 2};
  const std::string split = experts_config();
  expect_equal_one_rank(with_muon(base_run(split)),
                        {{"all of dp_shard", 4, 4},
                         half,
                         hybrid,
                         tp,
                         over,
                         over_tp({"over tp and dp_shard", 4, 4, "no_shard", 2}),
                         cp});
  expect_equal_one_rank(with_muon(base_run(with_stacks(split, "out_in"))), {half, tp, over, cp});
  TinyRunOptions biased = with_muon(base_run(with_gpt_oss(tiny_llava_config({.kv_heads = 2}), 4)));
  expect_equal_one_rank(biased, {half, hybrid, tp});
  biased.deck.llm.lora = {.targets = {"mlp.*"}, .rank = 3};
  expect_equal_one_rank(biased, {half, tp, exchanging(cp)});
}

/// The experts train, the routers do not.
TEST_F(ExpertParallel, FrozenRoutersDo) {
  TinyRunOptions run = base_run(experts_config());
  run.deck.optim.frozen = {"*.mlp.gate.weight"};
  const Layout both{"cp and dp_shard", 8, 4, "full_shard", 1, 2, 1, "ulysses"};
  expect_equal_one_rank(run, {{"half of dp_shard, ZeRO-2", 4, 2, "shard_grad_op"},
                              {"tp", 4, 2, "full_shard", 2},
                              over_tp({"over tp", 4, 2, "no_shard", 2}),
                              both,
                              exchanging(both),
                              {.name = "pp", .ranks = 4, .ep = 2, .pp = 2}});
}

TEST_F(ExpertParallel, BlocksOfStatesAreEachExperts) {
  nlohmann::json config = nlohmann::json::parse(experts_config());
  config["text_config"].update(
      {{"hidden_size", 64}, {"head_dim", 16}, {"moe_intermediate_size", 64}});
  TinyRunOptions run = base_run(config.dump());
  run.deck.optim.kind = "adamw_8bit";
  expect_equal_one_rank(run, {{"all of dp_shard", 4, 4},
                              {"half of it", 4, 2, "no_shard"},
                              {"tp and half of dp_shard", 8, 2, "full_shard", 2},
                              over_tp({"over tp", 4, 2, "full_shard", 2}),
                              exchanging({"cp and dp_shard", 8, 4, "full_shard", 1, 2}),
                              {.name = "pp", .ranks = 4, .ep = 2, .pp = 2}});
}

TEST_F(ExpertParallel, AllTokensMayChooseTheExpertsOfOneRank) {
  TinyRunOptions run = base_run(experts_config());
  run.fill = zero_routers;
  expect_equal_one_rank(run, {{"one of two ranks", 2, 2},
                              {"two of four ranks", 4, 4, "no_shard"},
                              {"cp", 4, 4, "full_shard", 1, 4},
                              {"tp and dp_shard", 8, 4, "full_shard", 2},
                              {"hybrid", 8, 2, "hybrid_shard_zero2", 1, 1, 2},
                              over_tp({"over tp and dp_shard", 4, 4, "full_shard", 2}),
                              exchanging(over_tp({"over tp and cp", 4, 4, "no_shard", 2, 2})),
                              exchanging({"two of four ranks", 4, 4}),
                              exchanging({"cp and dp_shard", 8, 4, "no_shard", 1, 2})});
}

/// The plan says how much a rank holds where all tokens choose its experts; one that has the rows
/// of all comes near it, the other stays below.
void expect_memory_within_bound(const std::string& small, const std::vector<Layout>& layouts) {
  nlohmann::json config = nlohmann::json::parse(small);
  nlohmann::json& text = config["text_config"];
  text.update({{"hidden_size", 64}, {"head_dim", 16}});
  text[text["model_type"] == "gpt_oss" ? "intermediate_size" : "moe_intermediate_size"] = 256;
  for (const Layout& layout : layouts) {
    const Communicator ranks = first_ranks(layout.ranks);
    if (ranks.size() == 0) continue;
    TinyRunOptions run = on_layout(base_run(config.dump()), layout);
    run.fill = zero_routers;
    run.deck.precision.preset = "fp32";
    run.deck.data.row_tokens = 256;
    run.deck.schedule.global_batch = 16;
    run.steps = 1;
    const MemoryDataset dataset = dataset_of(run, {0});
    const TinyResult got = run_tiny(ranks, make_host_collectives, dataset, run);
    const Plan plan = plan_of(run, layout.ranks);
    const StepPlan step = plan.step_plan(
        0, Sampler(16, 16, run.deck.run.seed, true).global_batch(0), dataset.index());
    const MemoryEstimate told = estimate_memory(
        plan, ranks.rank(), step.replicas[plan.replica_of(ranks.rank())], dataset.index());
    const double share =
        static_cast<double>(got.tensor_peak_bytes) / static_cast<double>(told.total());
    EXPECT_LE(share, 1) << layout.name << " rank " << ranks.rank();
    if (ranks.rank() == 0) {
      EXPECT_GE(share, 0.9) << layout.name;
    }
  }
}

TEST_F(ExpertParallel, MemoryIsWithinItsBound) {
  const Layout exchanged = exchanging({"exchanged, cp and dp_shard", 4, 4, "no_shard", 1, 2}),
               tp = over_tp({"over tp", 2, 2, "no_shard", 2});
  expect_memory_within_bound(
      experts_config(), {{"no_shard", 2, 2, "no_shard"},
                         {"full_shard", 2, 2},
                         {"cp", 2, 2, "no_shard", 1, 2},
                         exchanging({"exchanged", 2, 2, "no_shard"}),
                         exchanging({"exchanged, cp", 2, 2, "no_shard", 1, 2}),
                         exchanged,
                         tp,
                         exchanging(over_tp({"exchanged, tp and dp_shard", 4, 4, "no_shard", 2}))});
  expect_memory_within_bound(
      with_gemma4_text(tiny_llava_config({.kv_heads = 2}), {.experts = 4}),
      {{"Gemma 4, no_shard", 2, 2, "no_shard"}, {"Gemma 4, full_shard", 2, 2}, exchanged, tp});
  expect_memory_within_bound(
      with_gpt_oss(tiny_llava_config({.kv_heads = 2}), 4),
      {{"gpt-oss, no_shard", 2, 2, "no_shard"}, {"gpt-oss, full_shard", 2, 2}, exchanged, tp});
}

/// Texts go on to be as long as on one rank where cp ranks share experts.
TEST_F(ExpertParallel, CpRanksGenerateAsOneRank) {
  const std::vector<Layout> layouts{{"cp", 2, 2, "full_shard", 1, 2},
                                    {"half of cp", 4, 2, "no_shard", 1, 4},
                                    {"cp beside tp", 8, 2, "full_shard", 2, 2},
                                    over_tp({"tp and cp", 4, 4, "full_shard", 2, 2}),
                                    exchanging({"all of cp", 4, 4, "full_shard", 1, 4})};
  const std::vector<Trial> trials = make_trials(layouts);
  for (const std::string& config :
       {experts_config(), with_gpt_oss(tiny_llava_config({.kv_heads = 2}), 4),
        with_latent_attention(tiny_llava_config())}) {
    const TinyRunOptions run = base_run(config);
    const MemoryDataset dataset = dataset_of(run);
    const std::string expected =
        predictions_on(alone_, make_mpi_collectives, dataset, run, kWithoutCache);
    sweep(trials, [&](const Communicator& part, const Trial& trial) {
      const std::string got =
          predictions_on(part, trial.make, dataset, on_layout(run, layouts[trial.layout]));
      EXPECT_EQ(part.rank() == 0 ? got : expected, expected);
    });
  }
}

/// A checkpoint of one ep is read at another, with every bit of weights and states.
TEST_F(ExpertParallel, RunsGoOnAtAnotherEp) {
  const SharedDirectory shared(world().communicator());
  const TinyRunOptions run = stopped_run_options(experts_config());
  const MemoryDataset dataset = dataset_of(run);
  const Layout layouts[] = {{"one rank", 1, 1},
                            {"ep 2", 4, 2},
                            {"ep 4, no shards", 4, 4, "no_shard"},
                            {"ep 4 over cp", 8, 4, "full_shard", 1, 2},
                            {"ep 2 beside tp", 4, 2, "full_shard", 2},
                            {"no ep", 4, 1},
                            over_tp({"ep 4 over tp and dp_shard", 4, 4, "full_shard", 2})};
  for (const size_t writer : {1, 3, 4, 5, 6}) {
    const Layout& from = layouts[writer];
    const Communicator ranks = first_ranks(from.ranks);
    const std::string directory = shared / std::to_string(writer);
    const StoppedRun stopped =
        ranks.size() == 0
            ? StoppedRun{.checkpoint = directory + "/step-00000003"}
            : run_through(ranks, make_mpi_collectives, dataset, on_layout(run, from), directory);
    shared.barrier();
    for (const Layout& to : layouts) {
      SCOPED_TRACE(std::string(from.name) + " read by " + to.name);
      const Communicator readers = first_ranks(to.ranks);
      if (readers.size() > 0)
        expect_resumes(readers, make_mpi_collectives, dataset, on_layout(run, to), stopped);
    }
  }
}

}  // namespace
}  // namespace zea::testing::test_expert_parallel
