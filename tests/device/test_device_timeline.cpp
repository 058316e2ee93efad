// SPDX-License-Identifier: Apache-2.0
// Steps of a tiny model on the stand-in device in virtual time, where calls of NCCL begin in the
// order of their launches: the planner's time of a step is that of what the engine launches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "batch/make_microbatch.hpp"
#include "device/device.hpp"
#include "device/timeline.hpp"
#include "device/torch_device.hpp"
#include "estimate/step_time.hpp"
#include "layout/rank_order.hpp"
#include "schedule/communicators.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_run.hpp"
#include "train/training_data.hpp"

namespace zea::testing::test_device_timeline {
namespace {

constexpr int64_t kTokens = 32, kSamples = 8;
constexpr double kFlops = 1e9, kBytes = 1e8;  // per second

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 32,
    "intermediate_size": 96, "head_dim": 8, "vocab_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_hidden_layers": 6})";

/// GEMMs take what their FLOPs do, attention and memory nearly nothing; no call has a latency.
Hardware made_up(double bytes_per_second) {
  Hardware hardware;
  hardware.identity.name = "made up";
  hardware.node = {.ranks = 8, .memory_gib = 1};
  DeviceRates& device = hardware.device;
  device.fp64_tflops = kFlops / 1e12;
  device.gemm_dims = {1};
  device.gemm_efficiency = {1};
  device.attention_efficiency = 1;
  device.memory_gb_per_s = device.optimizer_gb_per_s = 1e6;
  hardware.inside.gb_per_s = hardware.between.gb_per_s = bytes_per_second / 1e9;
  return hardware;
}

CostTable cost_table(double bytes_per_second) {
  return {.flops_per_second = kFlops,
          .call_seconds = [=](const std::string&, double sent_bytes, int) {
            return sent_bytes / bytes_per_second;
          }};
}

/// Experts in every layer, all of which a token chooses, so ranks have equal loads.
constexpr const char* kExperts = R"({"model_type": "qwen3_moe", "hidden_size": 32,
    "intermediate_size": 96, "head_dim": 8, "vocab_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_hidden_layers": 6, "num_experts": 4, "num_experts_per_tok": 4,
    "moe_intermediate_size": 48})";

constexpr int32_t kImageToken = 3;  ///< of tiny_llava_config()

/// Samples as synthetic_samples() has them: of one length, with an image where the model has an
/// encoder, and then tokens that are all targets but a first one.
MemoryDataset dataset(const ModelSpec& model) {
  std::vector<Sample> samples;
  for (int64_t i = 0; i < kSamples; ++i) {
    Sample& sample = samples.emplace_back();
    sample.id = i;
    for (const EncoderSpec& encoder : model.encoders) {
      sample.tokens.assign(static_cast<size_t>(encoder.item_shape().features), kImageToken);
      const int64_t size = encoder.patches().image_size;
      sample.items.push_back({.bytes = std::vector<uint8_t>(static_cast<size_t>(3 * size * size)),
                              .raw = true,
                              .height = size,
                              .width = size,
                              .channels = 3});
    }
    sample.loss_mask.assign(std::max<size_t>(1, sample.tokens.size()), 0);
    for (int64_t token = std::ssize(sample.tokens); token < kTokens; ++token)
      sample.tokens.push_back(static_cast<int32_t>(4 + (7 * i + 3 * token) % 60));
    sample.loss_mask.resize(kTokens, 1);
  }
  return MemoryDataset(std::move(samples), item_kinds(model));
}

struct Layout {
  std::string name;
  int ranks;
  std::function<void(Options&)> set;
  double bytes_per_second = kBytes;
  std::string config = kModel;
};

Options deck_of(const Layout& layout) {
  Options deck;
  deck.data.row_tokens = kTokens;
  deck.data.shuffle = false;
  deck.schedule.global_batch = kSamples;
  deck.optim.clip_norm = 0;
  deck.precision.preset = PrecisionPreset::Fp64;
  layout.set(deck);
  return deck;
}

struct Timed {
  double seconds = 0;  ///< of the last rank
  std::vector<TimedWork> work;
};

/// Runs the actions of one step, all ranks' seconds of which are compared.
Timed run_step(const Communicator& ranks, const Layout& layout, Plan& plan) {
  TinyRunOptions options;
  options.deck = deck_of(layout);
  options.config_json = layout.config;
  const MemoryDataset data = dataset(make_plan(options.deck, layout.config, ranks.size()).model);
  options.device = stand_in_device();
  TinyRun run(ranks, make_stand_in_collectives, data, options);
  plan = run.engine().plan();
  const int rank = run.engine().world_rank();
  std::vector<int64_t> all(kSamples);
  std::iota(all.begin(), all.end(), 0);
  const RankStep step = plan.rank_step(plan.step_plan(0, all, data.index()), rank);
  std::vector<Microbatch> microbatches;
  for (const MicrobatchPlan& part : step.microbatches) {
    LoadedMicrobatch loaded = load_microbatch(data, loading_on(plan, rank), part.samples);
    loaded.expert_tokens = part.expert_tokens;
    microbatches.push_back(make_microbatch(loaded, plan.model, run.engine().microbatch_options()));
  }
  device().compute().drain();
  const std::unique_ptr<Collectives> control = make_mpi_collectives(ranks);
  // This test has no optimizer, so the world's communicator is not created.
  EXPECT_EQ(run.engine().mesh().num_communicators(),
            std::ssize(communicators_of_groups(plan, rank)) +
                count_small_communicators(plan, rank) - (ranks.size() > 1 ? 1 : 0));
  control->barrier();
  device().start_time(cost_table(layout.bytes_per_second));
  control->barrier();
  run.engine().run(step.schedule.actions, microbatches, HeadOutput::Loss);
  device().compute().drain();
  Timed timed{.work = device().take_timeline()};
  control->barrier();
  device().start_time(std::nullopt);
  double end = 0;
  for (const TimedWork& work : timed.work) end = std::max(end, work.end);
  control->all_reduce(&end, 1, DType::Float64, ReduceOp::Max).wait();
  timed.seconds = end;
  return timed;
}

double predicted(const Plan& plan, double bytes_per_second) {
  StepSamples samples = synthetic_samples(plan);
  const Hardware hardware = made_up(bytes_per_second);
  return step_time(plan, samples, hardware, even_nodes(plan.world_size(), 0)).seconds;
}

void set_mesh(Options& deck, const char* strategy, int tp, int shards, int replicas) {
  ModuleMeshOptions& llm = deck.meshes["llm"];
  llm.strategy = strategy;
  llm.tp = tp;
  deck.mesh.dp_shard = shards;
  deck.mesh.dp_replicate = replicas;
}

void set_pipeline(Options& deck, int stages) {
  set_mesh(deck, "no_shard", 1, 1, 1);
  deck.meshes["llm"].pp = stages;
}

void set_schedule(Options& deck, PipelineSchedule schedule, int virtual_stages) {
  set_pipeline(deck, 2);
  deck.mesh.schedule = schedule;
  deck.meshes["llm"].virtual_stages = virtual_stages;
}

void set_context(Options& deck, CpMode mode) {
  set_mesh(deck, "no_shard", 1, 1, 1);
  ModuleMeshOptions& llm = deck.meshes["llm"];
  llm.cp = 2;
  llm.cp_mode = mode;
  if (mode != CpMode::Ulysses) llm.cp_block = 4;
}

void set_experts(Options& deck, EpDispatch dispatch) {
  set_mesh(deck, "full_shard", 1, 2, 1);
  deck.meshes["llm"].ep = 2;
  deck.meshes["llm"].ep_dispatch = dispatch;
}

/// The encoder of images does not train, or does.
void set_images(Options& deck, bool trains) {
  set_mesh(deck, "full_shard", 1, 2, 1);
  deck.encoders["vision"].train = trains;
}

std::string llava() {
  return tiny_llava_config({.layers = 4, .vocabulary = 64, .image_size = 16});
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{
      {"one rank", 1, [](Options& deck) { set_mesh(deck, "no_shard", 1, 1, 1); }},
      {"fsdp 4", 4, [](Options& deck) { set_mesh(deck, "full_shard", 1, 4, 1); }},
      {"fsdp 4, slow links", 4, [](Options& deck) { set_mesh(deck, "full_shard", 1, 4, 1); }, 2e7},
      {"ddp 4", 4, [](Options& deck) { set_mesh(deck, "no_shard", 1, 1, 4); }},
      {"hybrid 2 x 2", 4, [](Options& deck) { set_mesh(deck, "hybrid_shard", 1, 2, 2); }},
      {"tp 2", 2, [](Options& deck) { set_mesh(deck, "no_shard", 2, 1, 1); }},
      {"tp 2, in 4 chunks", 2,
       [](Options& deck) {
         set_mesh(deck, "no_shard", 2, 1, 1);
         deck.meshes["llm"].tp_chunks = 4;
       }},
      {"tp 2 x fsdp 2", 4, [](Options& deck) { set_mesh(deck, "full_shard", 2, 2, 1); }},
      {"pp 2, slow links", 2, [](Options& deck) { set_pipeline(deck, 2); }, 1e7},
      {"pp 4, slow links", 4, [](Options& deck) { set_pipeline(deck, 4); }, 1e7},
      {"pp 2, zero bubble", 2,
       [](Options& deck) { set_schedule(deck, PipelineSchedule::ZeroBubble, 1); }},
      {"pp 2, interleaved", 2,
       [](Options& deck) { set_schedule(deck, PipelineSchedule::Interleaved, 3); }},
      {"cp 2, gathered keys", 2, [](Options& deck) { set_context(deck, CpMode::AllGatherKv); }},
      {"cp 2, ulysses", 2, [](Options& deck) { set_context(deck, CpMode::Ulysses); }},
      {"cp 2, ring", 2, [](Options& deck) { set_context(deck, CpMode::Ring); }},
      {"ep 2, all-gather", 2, [](Options& deck) { set_experts(deck, EpDispatch::AllGather); },
       kBytes, kExperts},
      {"ep 2, all-to-all", 2, [](Options& deck) { set_experts(deck, EpDispatch::AllToAll); },
       kBytes, kExperts},
      {"images, fsdp 2", 2, [](Options& deck) { set_images(deck, true); }, kBytes, llava()},
      {"frozen images, fsdp 2", 2, [](Options& deck) { set_images(deck, false); }, kBytes, llava()},
  };
  return all;
}

/// A long reduction, a gathering of the next parameters, and a sum of another group of ranks behind
/// it, as in a backward of FSDP with TP. Returns the timeline of this rank.
std::vector<TimedWork> reduce_gather_sum(const Communicator& ranks, bool reduces_apart) {
  constexpr int64_t kElements = 1000;
  const std::unique_ptr<Collectives> gathers = make_stand_in_collectives(ranks),
                                     reduces = make_stand_in_collectives(ranks),
                                     sums = make_stand_in_collectives(ranks);
  const auto options = at::dtype(at::kDouble).device(stand_in_device());
  const int64_t count = ranks.size();
  const at::Tensor gradient = at::zeros({count * kElements}, options),
                   own = at::zeros({kElements}, options), shard = at::zeros({kElements}, options),
                   all = at::zeros({count * kElements}, options), small = at::zeros({8}, options);
  device().compute().drain();
  const std::unique_ptr<Collectives> control = make_mpi_collectives(ranks);
  control->barrier();
  device().start_time(cost_table(kBytes));
  control->barrier();
  const Counts counts(static_cast<size_t>(count), kElements);
  Collectives& reducing = reduces_apart ? *reduces : *gathers;
  Pending calls[] = {
      reducing.reduce_scatter(gradient.data_ptr(), own.data_ptr(), counts, DType::Float64),
      gathers->all_gather(shard.data_ptr(), all.data_ptr(), counts, DType::Float64),
      sums->all_reduce(small.data_ptr(), 8, DType::Float64, ReduceOp::Sum)};
  for (Pending& call : calls) call.wait();
  device().compute().drain();
  control->barrier();
  device().start_time(std::nullopt);
  return device().take_timeline();
}

const TimedWork& of_name(const std::vector<TimedWork>& timeline, const std::string& name) {
  const auto found = std::ranges::find(timeline, name, &TimedWork::name);
  if (found == timeline.end()) throw std::runtime_error("no " + name + " in the timeline");
  return *found;
}

TEST(DeviceTimeline, ACallBeginsAfterAllThatWereLaunchedBeforeIt) {
  const Communicator part = first_ranks(2);
  if (part.size() == 0) return;
  const std::vector<TimedWork> together = reduce_gather_sum(part, false),
                               apart = reduce_gather_sum(part, true);
  const double reduced = of_name(together, "ncclReduceScatter").end;
  EXPECT_NEAR(reduced, 1000 * 8 / kBytes, 1e-9);
  EXPECT_EQ(of_name(together, "ncclAllGather").begin, reduced) << "on its stream";
  EXPECT_EQ(of_name(together, "ncclAllReduce").begin, reduced) << "by the order of launches";
  EXPECT_EQ(of_name(apart, "ncclAllGather").begin, 0);
  EXPECT_EQ(of_name(apart, "ncclAllReduce").begin, 0);
}

/// One message for each pair of ranks, in one kernel, replaces a broadcast from each rank.
TEST(DeviceTimeline, AnAllGatherOfUnequalPartsIsOneStep) {
  const Communicator part = first_ranks(4);
  if (part.size() == 0) return;
  const std::unique_ptr<Collectives> ranks = make_stand_in_collectives(part);
  const auto options = at::dtype(at::kDouble).device(stand_in_device());
  const Counts counts{3, 0, 5, 4};
  const at::Tensor all = at::zeros({12}, options);
  const int64_t before[] = {0, 3, 3, 8};
  const at::Tensor own = all.narrow(0, before[part.rank()], counts[part.rank()]);
  own.fill_(part.rank() + 1);
  device().take_launches();
  ranks->all_gather(own.data_ptr(), all.data_ptr(), counts, DType::Float64).wait();
  EXPECT_TRUE(at::equal(all.cpu(),
                        at::tensor({1, 1, 1, 3, 3, 3, 3, 3, 4, 4, 4, 4}, at::dtype(at::kDouble))));
  const Launches launches = device().take_launches();
  EXPECT_FALSE(launches.contains("ncclBroadcast"));
  EXPECT_EQ(launches.contains("ncclSend"), part.rank() != 1);
}

TEST(DeviceTimeline, TakesAsLongAsThePlannerSays) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    const Communicator part = first_ranks(layout.ranks);
    if (part.size() == 0) continue;
    Plan plan;
    const Timed timed = run_step(part, layout, plan);
    const double expected = predicted(plan, layout.bytes_per_second);
    if (part.rank() == 0)
      std::printf("%-24s stand-in %.6f planner %.6f ratio %.4f\n", layout.name.c_str(),
                  timed.seconds, expected, expected / timed.seconds);
    // On a busy machine an all-gather may be launched behind a reduction that it could precede.
    EXPECT_NEAR(expected, timed.seconds, 0.1 * timed.seconds);
    EXPECT_TRUE(device().take_faults().empty());
  }
}

double sum_of(const std::map<std::string, double>& seconds) {
  double sum = 0;
  for (const auto& [name, one] : seconds) sum += one;
  return sum;
}

/// Where ZEA_TRACE names a folder, its Chrome trace is written there.
void report(const Layout& layout, const Timelines& timelines,
            const std::map<std::string, double>& path) {
  std::printf("%s, the critical path:\n", layout.name.c_str());
  for (const auto& [name, seconds] : path) std::printf("  %-40s %.6f\n", name.c_str(), seconds);
  if (const char* folder = std::getenv("ZEA_TRACE"))
    std::ofstream(std::string(folder) + "/" + layout.name + ".json") << chrome_trace(timelines);
}

/// All of a step's time is a rank's computation or its waits, and one path leads to its end.
TEST(DeviceTimeline, SaysWhatAStepWaitsFor) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    const Communicator part = first_ranks(layout.ranks);
    if (part.size() == 0) continue;
    Plan plan;
    const Timed timed = run_step(part, layout, plan);
    double computing = 0, end = 0;
    for (const TimedWork& work : timed.work) {
      if (work.stream != 0) continue;
      if (!work.waits) computing += work.end - work.begin;
      end = std::max(end, work.end);
    }
    const std::map<std::string, double> exposed = exposed_seconds(timed.work);
    EXPECT_GT(computing, 0);
    EXPECT_NEAR(computing + sum_of(exposed), end, 1e-9);
    EXPECT_EQ(exposed.contains("llm.tp"), plan.mesh.grid("llm").tp > 1);
    const Timelines timelines = gathered(part, timed.work);
    if (part.rank() != 0) continue;
    ASSERT_EQ(std::ssize(timelines), layout.ranks);
    const std::map<std::string, double> path = critical_path(timelines);
    EXPECT_NEAR(sum_of(path), timed.seconds, 1e-9);
    EXPECT_FALSE(path.contains("nothing"));
    report(layout, timelines, path);
    size_t works = 0;
    for (const std::vector<TimedWork>& work : timelines) works += work.size();
    const auto trace = nlohmann::json::parse(chrome_trace(timelines));
    EXPECT_EQ(trace.at("traceEvents").size(), works);
    EXPECT_EQ(trace.at("traceEvents").back().at("pid"), layout.ranks - 1);
  }
}

}  // namespace
}  // namespace zea::testing::test_device_timeline
