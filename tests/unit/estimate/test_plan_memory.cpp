// SPDX-License-Identifier: Apache-2.0
// The memory estimate of a plan: the effect of sharding, freezing and gathering on a rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "core/error.hpp"
#include "estimate/describe.hpp"
#include "estimate/fitting_plan.hpp"
#include "estimate/memory_estimate.hpp"
#include "estimate/traffic.hpp"
#include "schedule/plan.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::test_plan_memory {
namespace {

using testing::tiny_llava_config;

TEST(PlanMemory, FullShardDividesTheOwnedBytes) {
  Options options;
  const auto estimate = [&](int ranks) {
    return estimate_groups(make_plan(options, tiny_llava_config(), ranks), 1).front();
  };
  const MemoryEstimate one = estimate(1), four = estimate(4);
  EXPECT_EQ(one.gathered, 0);
  EXPECT_GT(four.gathered, 0);
  EXPECT_NEAR(static_cast<double>(four.states) / static_cast<double>(one.states), 0.25, 0.05);
}

/// Returns the bytes gathered and of gradients not yet reduced, for the stage group with the most.
int64_t gathered_bytes(const Plan& plan) {
  int64_t most = 0;
  for (const MemoryEstimate& group : estimate_groups(plan, 4))
    most = std::max(most, group.gathered);
  return most;
}

TEST(PlanMemory, APipelineGathersForEachUseWhereMemoryIsShort) {
  Options options;
  options.meshes["llm"].pp = 2;
  options.data.row_tokens = 64;
  options.schedule.global_batch = 16;
  const auto plan_of = [&](double memory_mib, AutoOption reshard) {
    options.mesh.memory_mib = memory_mib;
    options.meshes["llm"].reshard_after_forward = options.meshes["vision"].reshard_after_forward =
        reshard;
    return make_plan(options, tiny_llava_config({.layers = 8}), 8);
  };
  const Plan once = plan_of(0, AutoOption()), each = plan_of(0, AutoOption::of(true));
  double held_once = 0, held_each = 0;
  for (const auto& [plan, held] : {std::pair(&once, &held_once), std::pair(&each, &held_each)})
    for (const MemoryEstimate& group : estimate_groups(*plan, 4))
      *held = std::max(*held, static_cast<double>(group.total() - group.activations) / (1 << 20));

  EXPECT_LT(gathered_bytes(each), gathered_bytes(once) / 2);
  const StepSamples samples = synthetic_samples(once);
  EXPECT_GT(traffic_of_samples(each, samples, 0).at("llm.dp_shard+encoder_dp+cp"),
            2 * traffic_of_samples(once, samples, 0).at("llm.dp_shard+encoder_dp+cp"));
  ASSERT_LT(held_each, held_once);
  EXPECT_EQ(gathered_bytes(plan_of(held_once * 1.01, AutoOption())), gathered_bytes(once));
  const Plan short_of_memory = plan_of((held_once + held_each) / 2, AutoOption());
  EXPECT_EQ(gathered_bytes(short_of_memory), gathered_bytes(each));
  EXPECT_EQ(gathered_bytes(plan_of((held_once + held_each) / 2, AutoOption::of(false))),
            gathered_bytes(once))
      << "what the deck says goes before";

  const std::string told = describe_gathering(once, samples),
                    told_short = describe_gathering(short_of_memory, samples);
  EXPECT_NE(told.find("llm: gathered once a step (auto, which gathers for each use only where "
                      "mesh.memory_mib or mesh.rank_memory_mib asks for it): "),
            std::string::npos)
      << told;
  EXPECT_NE(told_short.find("llm: gathered each time that a unit needs it (auto: more than "
                            "mesh.memory_mib otherwise): "),
            std::string::npos)
      << told_short;
}

/// A second microbatch adds its inputs to the last stage's peak, and the gradient of the first
/// one's that may still be on its way to the stage before.
TEST(PlanMemory, AGradientCountsWhileItIsSent) {
  Options options;
  options.meshes["llm"].pp = 2;
  options.data.row_tokens = 64;
  const auto further = [&](const char* mode) {
    options.run.mode = mode;
    const Plan plan = make_plan(options, tiny_llava_config(), 2);
    return estimate_groups(plan, 2).back().activations -
           estimate_groups(plan, 1).back().activations;
  };
  EXPECT_EQ(further("train") - further("evaluate"), 64 * 24 * 4);
}

/// Returns the bytes that a second microbatch adds to a stage group, without those of a third one,
/// its inputs.
int64_t beside_inputs(const Plan& plan, size_t group) {
  const auto told = [&](int64_t microbatches) {
    return estimate_groups(plan, microbatches).at(group).activations;
  };
  return 2 * told(2) - told(1) - told(3);
}

/// Nothing else holds the output of a unit that is recomputed, or that had no graph at all;
/// training also keeps the block's input of the microbatch that is one forward ahead.
TEST(PlanMemory, AnOutputCountsWhileItIsSent) {
  Options options;
  options.meshes["llm"].pp = 2;
  options.data.row_tokens = 64;
  options.model.activation_checkpointing = AutoOption::of_count(1);
  for (const auto& [mode, tensors] : {std::pair("evaluate", 1), std::pair("train", 2)}) {
    options.run.mode = mode;
    const Plan plan = make_plan(options, testing::tiny_gpt2_config(), 2);
    EXPECT_EQ(beside_inputs(plan, 0), tensors * 64 * 24 * 4) << mode;
  }
}

/// Features of several depths: the decoder's first stage reads them all at the start of a
/// microbatch, and sends all their gradients back at its end.
TEST(PlanMemory, FeaturesOfAllDepthsCountWhileTheyAreSent) {
  Options options;
  options.mesh.placement = "disjoint";
  options.meshes["vision"].encoder_dp = 1;
  options.data.row_tokens = 64;
  for (const auto& [mode, group] : {std::pair("evaluate", 0), std::pair("train", 1)}) {
    options.run.mode = mode;
    const Plan plan = make_plan(options, testing::tiny_qwen3_vl_config(), 2);
    const int64_t features = full_microbatch(plan).encoders[0].features;
    EXPECT_EQ(beside_inputs(plan, group), 3 * features * 24 * 4) << mode;
  }
}

/// A long sample on one replica, all others on the other: more than half of them.
TEST(PlanMemory, SaysWhatMicrobatchesOfUnequalReplicasTake) {
  Options options;
  options.data.packing = false;
  options.schedule.global_batch = 4;
  const std::vector<SampleIndex> index{{1000, {}, 1}, {10, {}, 1}, {10, {}, 1}, {10, {}, 1}};
  for (const auto& [balance, most] : {std::pair{true, 3}, {false, 2}}) {
    options.data.balance = balance;
    const Plan plan = make_plan(options, tiny_llava_config(), 2);
    EXPECT_EQ(plan.step_plan(0, {0, 1, 2, 3}, index).num_microbatches(), most);
    EXPECT_EQ(most_microbatches(plan), most);
    EXPECT_EQ(predicted_microbatches(plan), 2);
    EXPECT_EQ(describe(plan).find("(each further one: ") != std::string::npos, balance);
  }
}

TEST(PlanMemory, OfAnEvaluationNothingTrains) {
  Options options;
  options.run.mode = "evaluate";
  options.precision.preset = "bf16";
  const Plan plan = make_plan(options, tiny_llava_config(), 2);
  const MemoryEstimate told = estimate_groups(plan, 1).front();
  EXPECT_TRUE(std::ranges::none_of(plan.buffers, &FlatBuffer::trainable));
  EXPECT_EQ(told.states + told.gradients, 0);
  for (size_t g = 0; g < plan.buffers.size(); ++g)
    EXPECT_EQ(plan.owned_type(static_cast<int>(g)),
              plan.buffers[g].units.empty() ? DType::Float32 : DType::BFloat16);
}

/// Ranks that orthogonalize other matrices: a stage group takes as much as the rank with the
/// largest.
TEST(PlanMemory, OfMuonTheStageGroupHasWhatItsFullestRankTakes) {
  Options options;
  options.optim.kind = "muon";
  options.data.row_tokens = 8;
  options.model.activation_checkpointing = AutoOption::of_count(1);
  const Plan plan = make_plan(options, tiny_llava_config({.layers = 32}), 4);
  std::vector<int64_t> of_ranks;
  for (int rank = 0; rank < 4; ++rank)
    of_ranks.push_back(estimate_memory(plan, rank, {full_microbatch(plan)}).activations);
  const int64_t most = std::ranges::max(of_ranks);
  const MemoryEstimate told = estimate_groups(plan, 1).front();
  EXPECT_EQ(told.peak_at, "optimizer");
  EXPECT_LT(of_ranks.front(), most);
  EXPECT_GE(told.activations, most);
  EXPECT_LT(static_cast<double>(told.activations), 1.01 * static_cast<double>(most));
}

/// Returns a deck for GPUs whose modules are in host memory or not.
Options offloading(bool offloads, bool pins) {
  Options options;
  options.run.device = DeviceKind::Cuda;
  options.precision.preset = "bf16";
  for (const char* module : {"vision", "llm"}) {
    options.meshes[module].cpu_offload = offloads;
    if (offloads) options.meshes[module].pin_memory = AutoOption::of(pins);
  }
  return options;
}

Plan offloading_plan(bool offloads, bool pins, double rank_memory_mib = 0) {
  Options options = offloading(offloads, pins);
  options.mesh.rank_memory_mib = rank_memory_mib;
  return make_fitting_plan(options, tiny_llava_config(), 4);
}

TEST(PlanMemory, WhatIsOffloadedLiesInHostMemory) {
  const auto estimate = [](bool offloads, bool pins) {
    return estimate_groups(offloading_plan(offloads, pins), 2).front();
  };
  const MemoryEstimate here = estimate(false, false), there = estimate(true, false),
                       pinned = estimate(true, true);
  EXPECT_EQ(here.host, 0);
  EXPECT_EQ(there.host, here.parameters + here.gradients + here.states);
  EXPECT_EQ(there.parameters + there.gradients + there.states, 0);
  EXPECT_EQ(there.gathered, here.gathered);
  EXPECT_EQ(pinned.total(), there.total());
  EXPECT_GT(pinned.host, there.host) << "powers of two";
  EXPECT_LT(pinned.host, 2 * there.host);
  EXPECT_NE(describe(there).find("in host memory (cpu_offload) "), std::string::npos);
  EXPECT_EQ(describe(here).find("in host memory"), std::string::npos);
}

/// Returns the elements of one rank's shard.
int64_t shard_elements(const Plan& plan, const std::string& name) {
  const auto buffer = std::ranges::find(plan.buffers, name, &FlatBuffer::name);
  const int shards = plan.shardings[static_cast<size_t>(buffer - plan.buffers.begin())].shards;
  return buffer->padded(shards) / shards;
}

/// At the peak, one block's backward runs while the shard of the block before is gathered.
TEST(PlanMemory, OffloadedShardsCountWhileTheyAreGathered) {
  const Plan here = offloading_plan(false, false), there = offloading_plan(true, true);
  const auto told = [](const Plan& plan) { return estimate_groups(plan, 2).front(); };
  ASSERT_EQ(told(here).peak_at, "backward vision.layers.1");
  ASSERT_EQ(told(there).peak_at, "backward vision.layers.1");
  const int64_t beside = shard_elements(there, "vision.layers.0") * 2;
  ASSERT_LT(beside, shard_elements(there, "llm.layers.0") * 2);
  EXPECT_EQ(told(there).activations - told(here).activations, beside);
}

/// Short rows need little memory to compute: two shards are the most.
TEST(PlanMemory, TwoOffloadedShardsAreGatheredAtATime) {
  Options options = offloading(true, true);
  options.precision.preset = "fp32";
  options.data.row_tokens = 8;
  const Plan there = make_plan(options, tiny_llava_config(), 4);
  EXPECT_EQ(estimate_groups(there, 1).front().peak_at, "gathering llm.layers.0");
}

/// One token needs little memory to compute: such a sum over replicas weighs most.
TEST(PlanMemory, AnOffloadedSumIsMadeTheMastersTypeOnTheDevice) {
  Options options = offloading(true, true);
  options.mesh.dp_replicate = 4;
  for (const char* module : {"vision", "llm"}) options.meshes[module].strategy = "hybrid_shard";
  options.precision.preset = "fp32";
  options.precisions["llm"].reduce_dtype = "bf16";
  options.data.row_tokens = 1;
  const Plan plan = make_plan(options, tiny_llava_config(), 4);
  const MemoryEstimate told = estimate_groups(plan, 1).front();
  EXPECT_EQ(told.peak_at, "reducing llm.layers.1");
  EXPECT_GE(told.activations, 4 * shard_elements(plan, "llm.layers.1"));
}

/// A second microbatch adds to the peak its inputs and the gradients that arrive to be added to the
/// sums of the first: in fp32 nothing, at the first backward of all.
TEST(PlanMemory, GradientsCountWhileTheyArrive) {
  Options options = offloading(false, false);
  options.data.row_tokens = 64;
  const auto told = [&](int64_t microbatches) {
    return estimate_groups(make_plan(options, tiny_llava_config(), 4), microbatches).front();
  };
  for (const auto& [preset, peak_at, buffer] :
       {std::tuple("fp32", "backward llm.head", ""),
        std::tuple("bf16", "backward vision.layers.1", "vision.projector")}) {
    options.precision.preset = preset;
    options.run.mode = "evaluate";
    const int64_t inputs = told(2).activations - told(1).activations;
    options.run.mode = "train";
    const MemoryEstimate one = told(1), two = told(2);
    ASSERT_EQ(two.peak_at, peak_at);
    EXPECT_EQ(two.gathered, one.gathered) << preset;
    const Plan plan = make_plan(options, tiny_llava_config(), 4);
    const int64_t arriving = *buffer ? 4 * shard_elements(plan, buffer) : 0;
    EXPECT_EQ(two.activations - one.activations, inputs + arriving) << preset;
  }
}

TEST(PlanMemory, LimitsAreOfTheDevice) {
  const auto needed = [](bool offloads) {
    const Plan plan = offloading_plan(offloads, true);
    return estimate_groups(plan, predicted_microbatches(plan)).front();
  };
  const auto mebibytes = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const MemoryEstimate least = needed(true);
  const double limit = mebibytes(least.with_graphs()) + 0.001 * mebibytes(least.total());
  ASSERT_LT(limit, mebibytes(needed(false).with_graphs()));
  EXPECT_NO_THROW(offloading_plan(true, true, limit));
  const auto refusal = [](bool offloads, double limit_mib) -> std::string {
    try {
      offloading_plan(offloads, true, limit_mib);
    } catch (const PlanError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal(false, limit).find("set mesh.llm.cpu_offload = true"), std::string::npos)
      << refusal(false, limit);
  const std::string offloaded = refusal(true, 0.9 * limit);
  EXPECT_NE(offloaded.find("rank_memory_mib"), std::string::npos);
  EXPECT_EQ(offloaded.find("cpu_offload"), std::string::npos) << offloaded;
}

/// 600 MiB of the context, 144 of each usual communicator and 72 of each small one.
TEST(PlanMemory, LibrariesTakeAContextAndCommunicators) {
  const auto libraries = [](const char* strategy, int ranks, DeviceKind device) {
    Options options;
    options.run.device = device;
    options.meshes["vision"].strategy = options.meshes["llm"].strategy = strategy;
    const MemoryEstimate told =
        estimate_groups(make_plan(options, tiny_llava_config(), ranks), 1).front();
    EXPECT_EQ(told.with_graphs(), told.total() + told.libraries);
    return told.libraries / (1 << 20);
  };
  EXPECT_EQ(libraries("full_shard", 4, DeviceKind::Cpu), 0);
  EXPECT_EQ(libraries("full_shard", 1, DeviceKind::Cuda), 600);
  EXPECT_EQ(libraries("full_shard", 4, DeviceKind::Cuda), 600 + 144 * 2 + 72);  // and reductions
  EXPECT_EQ(libraries("no_shard", 4, DeviceKind::Cuda), 600 + 144 + 72);
}

/// LLaVA-1.5 7B with only its projector trained: frozen parameters take only bf16, 14 GB in place
/// of the 42 with masters.
TEST(PlanMemory, AFrozen7BTakesFourteenGigabytes) {
  const std::string config =
      R"({"model_type": "llava", "image_token_index": 32000,
          "text_config": {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
                          "num_hidden_layers": 32, "num_attention_heads": 32,
                          "vocab_size": 32064},
          "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024,
                            "intermediate_size": 4096, "num_hidden_layers": 24,
                            "num_attention_heads": 16, "image_size": 336, "patch_size": 14}})";
  Options options;
  options.precision.preset = "bf16";
  options.llm.train = options.encoders["vision"].train = false;
  options.data.row_tokens = 2048;
  const Plan plan = make_plan(options, config, 1);
  double frozen = 0, trained = 0;
  for (const ParamSpec& param : plan.model.params)
    (param.trainable ? trained : frozen) += static_cast<double>(num_elements(param.shape));
  ASSERT_NEAR(frozen, 7.04e9, 0.01e9);

  const MemoryEstimate told = estimate_groups(plan, 1).front();

  EXPECT_NEAR(static_cast<double>(told.parameters), 14.2e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(told.states), 8 * trained, 0.01 * trained);
  EXPECT_NEAR(static_cast<double>(told.gradients), 4 * trained, 0.01 * trained);
  EXPECT_EQ(told.gathered, 0);
}

}  // namespace
}  // namespace zea::test_plan_memory
