// SPDX-License-Identifier: Apache-2.0
// The seconds of a step: cases computed manually, pipelines against the simulator of passes, and
// the ways in which layouts lose time.
#include "estimate/step_time.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"
#include "estimate/describe.hpp"
#include "estimate/unit_time.hpp"
#include "schedule/simulate.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_step_time {
namespace {

constexpr const char* kText = R"({"model_type": "llama", "hidden_size": 24,
    "intermediate_size": 40, "head_dim": 6, "vocab_size": 40, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_hidden_layers": 4})";

constexpr const char* kExperts = R"({"model_type": "qwen3_moe", "hidden_size": 24,
    "intermediate_size": 40, "head_dim": 6, "vocab_size": 40, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "mlp_only_layers": [0]})";

constexpr double kPeak = 1e9;

/// GEMMs and attention at their peak, everything else free.
Hardware made_up() {
  Hardware hardware;
  hardware.identity.name = "made up";
  hardware.node = {.ranks = 4, .memory_gib = 1};
  DeviceRates& device = hardware.device;
  device.fp32_tflops = kPeak / 1e12;
  device.gemm_dims = {1};
  device.gemm_efficiency = {1};
  device.attention_efficiency = 1;
  device.memory_gb_per_s = 1e6;
  hardware.inside.gb_per_s = hardware.between.gb_per_s = 1e6;
  return hardware;
}

Options deck() {
  Options options;
  options.data.row_tokens = 64;
  options.schedule.global_batch = 8;
  options.optim.clip_norm = 0;
  options.meshes["llm"].strategy = "no_shard";
  options.meshes["llm"].cp_block = 4;
  return options;
}

Plan planned(const Options& options, int ranks, const std::string& config = kText) {
  return make_plan(options, config, ranks);
}

StepTime timed(const Plan& plan, const Hardware& hardware, int ranks_per_node = 0) {
  return step_time(plan, synthetic_samples(plan), hardware,
                   even_nodes(plan.world_size(), ranks_per_node));
}

double model_flops_of(const Plan& plan) {
  const StepSamples samples = synthetic_samples(plan);
  return plan_steps(plan, samples).front().model_flops;
}

double of(const WaitSeconds& waits, Wait wait) {
  return waits[static_cast<size_t>(wait)];
}

TEST(StepTime, OfOneRankIsThatOfItsFlops) {
  const Plan experts = planned(deck(), 1, kExperts);
  EXPECT_NEAR(timed(experts, made_up()).mfu, 1, 1e-3);
  const Plan plan = planned(deck(), 1);
  const StepTime time = timed(plan, made_up());
  EXPECT_NEAR(time.seconds, model_flops_of(plan) / kPeak, 1e-3 * time.seconds);
  EXPECT_NEAR(time.mfu, 1, 1e-3);
  EXPECT_NEAR(time.tokens_per_second, 8 * 64 / time.seconds, 1e-6 * time.tokens_per_second);
  EXPECT_NEAR(time.idle_share(), 0, 1e-6);
  const Plan images = planned(deck(), 1, tiny_llava_config());
  const StepTime with_images = timed(images, made_up());
  EXPECT_NEAR(with_images.seconds, model_flops_of(images) / kPeak, 1e-3 * with_images.seconds);
}

TEST(StepTime, CountsTheProductOfLogitsThatAreNotKept) {
  for (const int64_t vocabulary : {200'000, 400'000}) {  // 2^24 logits of a microbatch are kept
    std::string config = kText;
    config.replace(config.find("\"vocab_size\": 40"), 16,
                   "\"vocab_size\": " + std::to_string(vocabulary));
    const Plan plan = planned(deck(), 1, config);
    const double targets = 8 * static_cast<double>(synthetic_samples(plan).index[0].targets);
    const double product = 2 * targets * 24 * static_cast<double>(vocabulary);
    const double more = timed(plan, made_up()).seconds * kPeak - model_flops_of(plan);
    EXPECT_NEAR(more / product, vocabulary == 400'000 ? 1 : 0, 0.01) << vocabulary;
  }
}

TEST(StepTime, GrowsWithRecomputationAsItsFlopsDo) {
  Options options = deck();
  options.model.activation_checkpointing = AutoOption::of_count(1);
  const Plan plan = planned(options, 1);
  const StepTime plain = timed(planned(deck(), 1), made_up()), again = timed(plan, made_up());
  const StageTime& stage = again.stages.front();
  EXPECT_GT(stage.recomputed, 0.2 * plain.seconds);
  EXPECT_NEAR(again.seconds - plain.seconds, stage.recomputed, 1e-6 * plain.seconds);
  EXPECT_NEAR(stage.compute, plain.stages.front().compute + stage.recomputed, 1e-9);
}

/// Each block recomputes two norms and a gate: an element that is written is read once, and that
/// of a gate twice.
TEST(StepTime, GrowsWithSelectiveRecomputationAsItsBytesDo) {
  Hardware hardware = made_up();
  hardware.device.memory_gb_per_s = 1;
  Options options = deck();
  options.model.activation_checkpointing = AutoOption::selective();
  const StepTime plain = timed(planned(deck(), 1), hardware),
                 again = timed(planned(options, 1), hardware);
  const StageTime& stage = again.stages.front();
  const double rows = 8 * 64, layers = 4, elements = 2 * 2 * 24 + 3 * 40;
  EXPECT_NEAR(stage.recomputed, 4e-9 * layers * rows * elements, 1e-3 * stage.recomputed);
  EXPECT_NEAR(again.seconds - plain.seconds, stage.recomputed, 1e-6 * plain.seconds);
}

TEST(StepTime, KnowsGemmsAttentionMemoryAndLaunches) {
  const Plan plan = planned(deck(), 1);
  Hardware hardware = made_up();
  const double fast = timed(plan, hardware).seconds;
  hardware.device.attention_efficiency = 0.5;
  const double slow_attention = timed(plan, hardware).seconds;
  hardware = made_up();
  hardware.device.gemm_efficiency = {0.5};
  const double slow_gemms = timed(plan, hardware).seconds;
  // Each half is slower by itself, both together are all of it.
  EXPECT_GT(slow_attention, 1.02 * fast);
  EXPECT_GT(slow_gemms, 1.5 * fast);
  EXPECT_NEAR(slow_attention - fast + slow_gemms - fast, fast, 2e-3 * fast);
  hardware = made_up();
  hardware.device.memory_gb_per_s = 0.1;
  EXPECT_GT(timed(plan, hardware).seconds, 1.2 * fast);
  hardware = made_up();
  hardware.device.launch_us = 1e4;  // so that nothing else counts
  const double launched = timed(plan, hardware).seconds;
  hardware.device.launch_us = 2e4;
  EXPECT_NEAR(timed(plan, hardware).seconds, 2 * launched, 0.02 * launched);
  hardware.device.launch_us = 1e4;
  hardware.device.launches_ahead = false;  // launches come on top
  EXPECT_NEAR(timed(plan, hardware).seconds, launched + fast, 0.02 * launched);
}

TEST(StepTime, CountsCallsByHand) {
  Hardware hardware = made_up();
  hardware.inside = {.latency_us = 10, .hop_us = 1, .gb_per_s = 2, .all_reduce_gb_per_s = 4};
  hardware.between = {.latency_us = 100, .hop_us = 5, .gb_per_s = 0.5, .all_to_all_gb_per_s = 0.25};
  const int64_t bytes = 4000000;
  const auto seconds = [&](CollectiveKind kind, const GroupNodes& groups, int messages = 1) {
    return call_seconds({"", kind, bytes, messages}, groups, hardware);
  };
  const GroupNodes node{.ranks = 8, .nodes = 1, .per_node = 8, .elsewhere = 0};
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::AllGather, node), 17e-6 + 2e-3);
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::AllReduce, node), 16e-6 + 1e-3);
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::Send, node, 3), 30e-6 + 2e-3);
  // Two ranks of each of four nodes: 1 GB/s leave a node, less than the 2 GB/s inside.
  const GroupNodes nodes{.ranks = 8, .nodes = 4, .per_node = 2, .elsewhere = 6.0 / 7};
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::ReduceScatter, nodes), 135e-6 + 4e-3);
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::AllReduce, nodes), 130e-6 + 4e-3);
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::AllToAll, nodes), 100e-6 + 4e-3 * 6 / 7 * 4);
  EXPECT_EQ(seconds(CollectiveKind::AllGather, {}), 0);
  // Each chunk has its latency.
  const SentCall chunked{.bytes = bytes, .chunks = 4};
  EXPECT_DOUBLE_EQ(call_seconds(chunked, node, hardware), 4 * 17e-6 + 2e-3);
}

TEST(StepTime, HidesChunksOfRowsUnderGemms) {
  using detail::SentIn;
  // The second operation's weight is frozen.
  const UnitSeconds kernels{.gemms = {{.output = 8, .input = 6, .weight = 5}, {.input = 6}}};
  const auto exposed = [&](SentIn sent_in, double seconds, int chunks, int operation = 0) {
    const SentCall call{.kind = CollectiveKind::ReduceScatter,
                        .operation = operation,
                        .sent_in = sent_in,
                        .chunks = chunks};
    return exposed_seconds(call, seconds, kernels, true);
  };
  EXPECT_EQ(exposed(SentIn::Forward, 4, 1), 4);
  EXPECT_EQ(exposed(SentIn::Forward, 4, 4), 1) << "all but the first chunk";
  EXPECT_EQ(exposed(SentIn::Forward, 12, 4), 3 + 3 * (3 - 2)) << "a chunk's GEMM takes 2";
  EXPECT_EQ(exposed(SentIn::Backward, 6, 2), 3);
  EXPECT_EQ(exposed(SentIn::Backward, 8, 2), 4 + (4 - 3));
  EXPECT_EQ(exposed(SentIn::InputGradient, 8, 1), 3) << "beyond the weight's GEMM";
  EXPECT_EQ(exposed(SentIn::InputGradient, 8, 2), 3) << "the GEMM of dx hides the gather of x";
  EXPECT_EQ(exposed(SentIn::InputGradient, 4, 2), 0);
  EXPECT_EQ(exposed(SentIn::InputGradient, 20, 2, 1), 10 + (10 - 3));
  EXPECT_EQ(exposed(SentIn::WeightGradient, 8, 1), 2);
}

TEST(StepTime, ChunksOfRowsExposeLess) {
  Hardware hardware = made_up();
  hardware.inside.gb_per_s = 0.05;
  Options options = deck();
  options.meshes["llm"].tp = 2;
  const auto exposed = [&](int chunks) {
    options.meshes["llm"].tp_chunks = chunks;
    return of(timed(planned(options, 2), hardware).exposed(), Wait::Tp);
  };
  const double whole = exposed(1), halves = exposed(2), quarters = exposed(4);
  EXPECT_LT(halves, 0.9 * whole);
  EXPECT_LT(quarters, halves);
  // A latency that is longer than a chunk's transfer makes chunks slower.
  hardware.inside.latency_us = 1e6;
  EXPECT_GT(exposed(4), exposed(1));
}

TEST(StepTime, AddsGradientSumsThatNothingHides) {
  Hardware hardware = made_up();
  hardware.device.overlaps = false;
  hardware.inside = {.latency_us = 50, .hop_us = 5, .gb_per_s = 0.01};
  Options options = deck();
  options.meshes["llm"].bucket_mib = 1000;
  const Plan one = planned(options, 1), two = planned(options, 2);
  double bytes = 0, calls = 0;
  for (const FlatBuffer& buffer : two.buffers) {
    bytes += static_cast<double>(buffer.padded(1)) * 4;
    ++calls;
  }
  // Each of two ranks sends half of the buffer twice, along a tree of one level.
  const double sums = calls * 60e-6 + bytes / 1e7, norm = 60e-6 + 16 / 1e7;
  const StepTime alone = timed(one, made_up()), both = timed(two, hardware);
  EXPECT_NEAR(of(both.exposed(), Wait::Dp), sums, 1e-6 * sums);
  EXPECT_NEAR(both.seconds, alone.seconds / 2 + sums + norm, 1e-3 * both.seconds);
}

TEST(StepTime, HidesGatheringUnderComputation) {
  Options options = deck();
  options.meshes["llm"].strategy = "full_shard";
  const Plan plan = planned(options, 4);
  Hardware hardware = made_up();
  const StepTime free = timed(plan, hardware);
  hardware.inside.gb_per_s = 0.02;
  const StepTime hidden = timed(plan, hardware);
  hardware.device.overlaps = false;
  const StepTime exposed = timed(plan, hardware);
  EXPECT_GT(exposed.seconds, free.seconds + 0.9 * of(exposed.exposed(), Wait::Dp));
  EXPECT_LT(of(hidden.exposed(), Wait::Dp), 0.6 * of(exposed.exposed(), Wait::Dp));
  EXPECT_GT(hidden.seconds, free.seconds);
  hardware.device.overlaps = true;
  hardware.inside.gb_per_s = 1e-4;  // a network that computation cannot hide
  hardware.device.fp32_tflops = 1;
  const StepTime slow = timed(plan, hardware);
  EXPECT_GT(of(slow.exposed(), Wait::Dp), 0.99 * slow.seconds);
}

TEST(StepTime, ReductionsHoldUpNeitherGathersNorTp) {
  // A unit's first tp call in backward starts behind the gather of the unit before it. On a stream
  // with the reduction that is under way, the gather would wait for that, and half of the step's
  // messages would be exposed.
  std::string config = kText;
  config.replace(config.find("\"num_hidden_layers\": 4"), 22, "\"num_hidden_layers\": 12");
  Hardware hardware = made_up();
  hardware.between.gb_per_s = 0.03;
  double shares[2];
  for (const int tp : {1, 2}) {
    Options options = deck();
    options.schedule.global_batch = 4;
    options.meshes["llm"].strategy = "full_shard";
    options.meshes["llm"].tp = tp;
    const StepTime time = timed(planned(options, 4 * tp, config), hardware, tp);
    shares[tp - 1] = of(time.exposed(), Wait::Dp) / time.seconds;
  }
  EXPECT_LT(shares[0], 0.15);
  EXPECT_LT(shares[1], 0.15);
}

TEST(StepTime, ExposesTensorAndContextParallelCalls) {
  Hardware hardware = made_up();
  hardware.inside.gb_per_s = 0.05;
  Options options = deck();
  options.meshes["llm"].tp = 2;
  const Plan tensor = planned(options, 2);
  const StepSamples samples = synthetic_samples(tensor);
  const StepPlan step = plan_steps(tensor, samples).front();
  const Traffic sent = traffic_of_step(tensor, step, rows_of_step(tensor, samples, step, 0), 0);
  const double all = static_cast<double>(sent.at("llm.tp")) / 5e7;
  // Inputs are gathered again, and their gradients summed, under GEMMs of backward.
  const StepTime partly_hidden = timed(tensor, hardware);
  EXPECT_GT(of(partly_hidden.exposed(), Wait::Tp), 0.5 * all);
  EXPECT_LT(of(partly_hidden.exposed(), Wait::Tp), 0.8 * all);
  hardware.device.overlaps = false;
  const StepTime time = timed(tensor, hardware);
  EXPECT_NEAR(of(time.exposed(), Wait::Tp), all, 1e-6 * time.seconds);
  hardware.device.overlaps = true;
  options = deck();
  options.meshes["llm"].cp = 2;
  const StepTime gathered = timed(planned(options, 2), hardware);
  EXPECT_GT(of(gathered.exposed(), Wait::Cp), 0.05 * gathered.seconds);
  options.meshes["llm"].cp_mode = "ring";
  const StepTime ring = timed(planned(options, 2), hardware);
  EXPECT_LT(of(ring.exposed(), Wait::Cp), of(gathered.exposed(), Wait::Cp));
}

TEST(StepTime, OfPipelinesIsThatOfTheSimulatedPasses) {
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble", "interleaved_1f1b"}) {
    Options options = deck();
    options.schedule.global_batch = 6;
    options.mesh.schedule = schedule;
    options.meshes["llm"].pp = 2;
    if (std::string(schedule) == "interleaved_1f1b") options.meshes["llm"].virtual_stages = 2;
    const Plan plan = planned(options, 2);
    const Hardware hardware = made_up();
    UnitTimes units(plan, hardware.device);
    const StepSamples samples = synthetic_samples(plan);
    const StepPlan step = plan_steps(plan, samples).front();
    const std::vector<MicrobatchRows> rows = rows_of_step(plan, samples, step, 0);
    std::vector<UnitCost> costs;
    for (size_t u = 0; u < plan.model.units.size(); ++u) {
      const UnitSeconds& unit =
          units.of(static_cast<int>(u), rows[0].of(plan.model.units[u].module));
      costs.push_back({unit.forward, unit.backward_input, unit.backward_weight});
    }
    const Simulation passes = simulate(plan.pipeline, plan.model, costs, step.num_microbatches());
    const StepTime time = timed(plan, hardware);
    EXPECT_NEAR(time.seconds, passes.makespan, 1e-4 * time.seconds) << schedule;
    EXPECT_NEAR(time.idle_share(), passes.bubble(), 1e-3) << schedule;
    EXPECT_GT(time.idle_share(), 0.05) << schedule;
  }
}

TEST(StepTime, OfMessagesBetweenStagesIsOnTheirWay) {
  Options options = deck();
  options.meshes["llm"].pp = 2;
  options.schedule.global_batch = 1;
  const Plan plan = planned(options, 2);
  Hardware hardware = made_up();
  const double free = timed(plan, hardware).seconds;
  hardware.inside = {.latency_us = 7, .gb_per_s = 0.1};
  // One microbatch: its rows go one way, their gradients back, and nothing hides either.
  const double message = 7e-6 + 64 * 24 * 4 / 1e8;
  const StepTime time = timed(plan, hardware);
  EXPECT_NEAR(time.seconds, free + 2 * message + 7e-6 + 16 / 1e8, 1e-6 * time.seconds);
  EXPECT_NEAR(2 * of(time.exposed(), Wait::Pp), 2 * message, 1e-6 * time.seconds);
}

TEST(StepTime, KnowsNodesAndReplicasWithoutSamples) {
  Options options = deck();
  options.meshes["llm"].strategy = "full_shard";
  options.schedule.global_batch = 6;
  const Plan plan = planned(options, 8);
  Hardware hardware = made_up();
  hardware.between.gb_per_s = 0.001;
  const StepTime node = timed(plan, hardware), nodes = timed(plan, hardware, 4);
  EXPECT_GT(nodes.seconds, 2 * node.seconds);
  EXPECT_NEAR(node.balance, 0.75, 1e-9);
  EXPECT_LT(node.mfu, 0.76);
}

TEST(StepTime, KnowsTheRowsThatSharedExpertsGet) {
  Options options = deck();
  options.meshes["llm"].strategy = "full_shard";
  options.mesh.dp_shard = 2;
  Hardware hardware = made_up();
  EXPECT_EQ(of(timed(planned(options, 2, kExperts), hardware).exposed(), Wait::Ep), 0);
  options.meshes["llm"].ep = 2;
  hardware.inside.gb_per_s = 1e-3;
  for (const char* dispatch : {"allgather", "alltoall"}) {
    options.meshes["llm"].ep_dispatch = dispatch;
    const Plan plan = planned(options, 2, kExperts);
    const StepSamples samples = synthetic_samples(plan);
    const StepPlan step = plan_steps(plan, samples).front();
    const Traffic sent = traffic_of_step(plan, step, rows_of_step(plan, samples, step, 0), 0);
    const double bytes = static_cast<double>(sent.at("llm.ep_dp_shard"));
    EXPECT_GT(bytes, 0);
    EXPECT_NEAR(of(timed(plan, hardware).exposed(), Wait::Ep), bytes / 1e6, 1e-6 * bytes / 1e6);
  }
}

/// The host waits for counts of rows once in each mixture's forward, and launches anew then.
TEST(StepTime, KnowsTheWaitsOfExchangedTokens) {
  Options options = deck();
  options.meshes["llm"].strategy = "full_shard";
  options.meshes["llm"].ep = 2;
  Hardware hardware = made_up();
  hardware.device.launch_us = 1e3;
  const auto compute = [&](const char* dispatch) {
    options.meshes["llm"].ep_dispatch = dispatch;
    return timed(planned(options, 2, kExperts), hardware).stages.front().compute;
  };
  const Plan plan = planned(options, 2, kExperts);
  const auto microbatches = static_cast<double>(
      plan_steps(plan, synthetic_samples(plan)).front().replicas.front().size());
  double mixtures = 0;
  for (const UnitSpec& unit : plan.model.units)
    mixtures += unit.kind == UnitKind::Block && plan.model.mlp(unit).router ? 1 : 0;
  EXPECT_GT(mixtures, 0);
  EXPECT_NEAR(compute("alltoall") - compute("allgather"), 1e-3 * mixtures * microbatches, 1e-9);
}

TEST(StepTime, BoundsEveryStrategyAndRecomputation) {
  Hardware hardware = made_up();
  hardware.inside.gb_per_s = 0.05;
  hardware.device.memory_gb_per_s = 1;
  for (const int pp : {1, 2}) {
    Options options = deck();
    options.meshes["llm"].pp = pp;
    const Plan base = planned(options, 4);
    const StepSamples samples = synthetic_samples(base);
    DistributedSteps steps(samples);
    const StepTimer timer(base, samples, steps, hardware, even_nodes(4, 0));
    for (const char* strategy : {"no_shard", "shard_grad_op", "full_shard"})
      for (const int every : {0, 1, 2, 3}) {
        options.meshes["llm"].strategy = strategy;
        options.model.activation_checkpointing =
            every < 3 ? AutoOption::of_count(every) : AutoOption::selective();
        const Plan plan = planned(options, 4);
        const double seconds = timer.time(plan).seconds;
        EXPECT_GT(seconds, timer.bound(plan)) << strategy << every;
        EXPECT_LT(timer.bound(plan), 0.999 * seconds);
        EXPECT_DOUBLE_EQ(seconds, timed(plan, hardware).seconds);
      }
  }
}

TEST(StepTime, IsToldWithTheSlowestRankAndTheReason) {
  Options options = deck();
  options.mesh.placement = "disjoint";
  options.meshes["vision"].encoder_dp = 1;
  const Plan plan = planned(options, 2, tiny_llava_config());
  const StepSamples samples = synthetic_samples(plan);
  const StepTime time = step_time(plan, samples, made_up(), even_nodes(2, 0));
  EXPECT_EQ(time.slowest().name, "llm.pp0");
  const std::string text = describe_time(plan, samples, time, made_up());
  for (const char* part :
       {"on made up, by published figures: ", " tokens/s", "MFU ",
        "communication that nothing hides: ", "stages wait for others ",
        "slowest: rank 1 (llm.pp0): its kernels take 1.", "note: reading and decoding data"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(StepTime, RefusesTypesThatTheFileDoesNotKnow) {
  Options options = deck();
  options.precision.preset = "bf16";
  try {
    timed(planned(options, 1), made_up());
    FAIL() << "no rate of bf16";
  } catch (const PlanError& error) {
    EXPECT_NE(std::string(error.what()).find("no peak for bfloat16, in which module llm"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace zea::testing::test_step_time
