// SPDX-License-Identifier: Apache-2.0
// Device memory of training: counted by the allocator, reported as predicted, and as the maximum of
// all ranks.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "device/device.hpp"
#include "device/kernels.hpp"
#include "device/torch_device.hpp"
#include "estimate/memory_estimate.hpp"
#include "support/made_up_models.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_run.hpp"
#include "train/reserve_memory.hpp"
#include "train/train_report.hpp"

namespace zea::testing::test_device_memory {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

class DeviceMemoryOfTraining : public ::testing::Test {
 protected:
  void SetUp() override { have_kernels(true); }
  void TearDown() override { have_kernels(false); }
};

/// Wide enough that alignment and padding do not count.
TinyRunOptions run_of(const char* preset, const char* strategy) {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.layers = 3}));
  config["text_config"]["hidden_size"] = 96;
  config["text_config"]["intermediate_size"] = 256;
  config["text_config"]["head_dim"] = 24;
  config["vision_config"]["hidden_size"] = 64;
  config["vision_config"]["intermediate_size"] = 192;
  TinyRunOptions run;
  run.config_json = config.dump();
  run.deck.run.device = DeviceKind::Cuda;
  run.deck.precision.preset = preset;
  run.deck.meshes["vision"].strategy = run.deck.meshes["llm"].strategy = strategy;
  run.deck.data.row_tokens = 256;
  run.deck.schedule = {.steps = 3, .global_batch = 24};
  run.device = stand_in_device();
  return run;
}

/// A run whose steps are watched.
struct WatchedRun {
  explicit WatchedRun(const TinyRunOptions& options)
      : dataset(make_tiny_dataset(make_model_spec(options.config_json), 40, {1, 0, 2}, 5)),
        run(world().communicator(), make_stand_in_collectives, dataset, options),
        sampler(40, options.deck.schedule.global_batch, options.deck.run.seed,
                options.deck.data.shuffle),
        watch(bytes, run.engine(), dataset.index()) {}

  void train() {
    const Plan& plan = run.engine().plan();
    const int64_t step = run.position().step;
    TinyResult result;
    watch.begin_step();
    run.train(1, result);
    watch.end_step(plan.rank_step(plan.step_plan(step, sampler.global_batch(step), dataset.index()),
                                  run.engine().world_rank()));
  }

  TensorBytes bytes;  // outlives all tensors
  MemoryDataset dataset;
  TinyRun run;
  Sampler sampler;
  MemoryWatch watch;
};

/// "counted 1.00 MiB", in bytes.
double told(const std::string& summary, const std::string& what) {
  const size_t at = summary.find(what + " ");
  return at == std::string::npos ? 0 : std::stod(summary.substr(at + what.size() + 1)) * kMebibyte;
}

TEST_F(DeviceMemoryOfTraining, IsToldAsPredictedAndCounted) {
  for (const char* preset : {"fp32", "bf16"})
    for (const char* strategy : {"full_shard", "no_shard"}) {
      WatchedRun run(run_of(preset, strategy));
      for (int step = 0; step < 3; ++step) run.train();
      const std::string summary = run.watch.summary();
      const double predicted = told(summary, "predicted"), counted = told(summary, "counted");
      EXPECT_NEAR(counted, static_cast<double>(run.watch.peak_bytes()), 0.01 * kMebibyte);
      EXPECT_NEAR(counted / predicted, 1, 0.1) << preset << ", " << strategy << ": " << summary;
      EXPECT_EQ(summary.find("beside"), std::string::npos) << summary;
    }
}

/// Host memory does not count as the device's. Little else is left on the device, so temporary
/// shards weigh more.
TEST_F(DeviceMemoryOfTraining, IsToldAsPredictedOfOffloadedModules) {
  for (const char* preset : {"fp32", "bf16"})
    for (const int copies : {1, 2}) {
      TinyRunOptions options = run_of(preset, copies > 1 ? "hybrid_shard" : "full_shard");
      options.deck.mesh.dp_replicate = copies;
      for (const char* module : {"vision", "llm"}) options.deck.meshes[module].cpu_offload = true;
      WatchedRun run(options);
      for (int step = 0; step < 3; ++step) run.train();
      const std::string summary = run.watch.summary();
      EXPECT_NEAR(told(summary, "counted") / told(summary, "predicted"), 1, 0.1)
          << preset << ", copies " << copies << ": " << summary;
    }
}

/// Each token sees a window of its sample, by the bounds of samples.
TEST_F(DeviceMemoryOfTraining, IsToldAsPredictedOfWindows) {
  TinyRunOptions options = run_of("bf16", "full_shard");
  options.remake = see_windows;
  WatchedRun run(options);
  for (int step = 0; step < 3; ++step) run.train();
  const std::string summary = run.watch.summary();
  EXPECT_NEAR(told(summary, "counted") / told(summary, "predicted"), 1, 0.1) << summary;
}

/// Samples that are shorter than a chunk, and rows of more chunks than are computed at once; whole
/// rows, and runs between which states pass.
TEST_F(DeviceMemoryOfTraining, IsToldAsPredictedOfDeltaRules) {
  for (const char* preset : {"fp32", "bf16"})
    for (const bool passes_states : {false, true}) {
      TinyRunOptions options = run_of(preset, "full_shard");
      options.remake = mix_delta_rules;
      options.deck.data.row_tokens = 1024;
      if (passes_states) {
        options.deck.meshes["llm"].cp = 2;
        options.deck.meshes["llm"].cp_scan = CpScan::States;
        options.deck.meshes["llm"].cp_distribution = "uniform";
      }
      WatchedRun run(options);
      for (int step = 0; step < 3; ++step) run.train();
      const std::string summary = run.watch.summary();
      EXPECT_NEAR(told(summary, "counted") / told(summary, "predicted"), 1, 0.1)
          << preset << (passes_states ? ", states: " : ": ") << summary;
    }
}

/// Then no allocation in a step waits for the device, and through it for other ranks. What the
/// allocator keeps is for the computing stream alone, where inputs are not.
TEST_F(DeviceMemoryOfTraining, StepsStayWithinReservedMemory) {
  for (const char* preset : {"fp32", "bf16"})
    for (const char* strategy : {"full_shard", "no_shard"}) {
      WatchedRun run(run_of(preset, strategy));
      const Engine& engine = run.run.engine();
      const int64_t most = even_microbatches(engine.plan());
      const StepBytes bytes = bytes_of_steps(engine.plan(), engine.world_rank(), most);
      take_beside_allocator(bytes.libraries);
      const auto before = device_memory(stand_in_device());
      EXPECT_EQ(reserve_for_steps(engine, most), "");
      take_beside_allocator(0);
      const auto after = device_memory(stand_in_device());
      EXPECT_EQ(after->requested, before->requested);
      EXPECT_EQ(after->peak_requested, after->requested) << "metrics begin with the reservation";
      EXPECT_GE(after->reserved - before->reserved, bytes.computing);
      EXPECT_LT(after->reserved - before->reserved, bytes.computing + 4096);
      const StreamPeaks standing = stream_peaks();
      StreamPeaks taken;
      for (int step = 0; step < 2; ++step) {
        run.train();
        const StreamPeaks now = stream_peaks();
        taken.computing = std::max(taken.computing, now.computing - standing.computing);
        taken.others = std::max(taken.others, now.others - standing.others);
      }
      EXPECT_GT(taken.computing, 0);
      EXPECT_LE(taken.computing, bytes.computing) << preset << ", " << strategy;
      EXPECT_GT(taken.others, 0);
      EXPECT_LE(taken.others, bytes.inputs) << preset << ", " << strategy;
    }
}

TEST_F(DeviceMemoryOfTraining, OfAllMicrobatchesOfGPipeIsReserved) {
  const auto computing = [](int64_t batch, PipelineSchedule schedule) {
    TinyRunOptions run = run_of("fp32", "full_shard");
    run.deck.mesh.schedule = schedule;
    run.deck.meshes["llm"].pp = 2;
    run.deck.schedule.global_batch = batch;
    const Plan plan = make_plan(run.deck, run.config_json, 2);
    return bytes_of_steps(plan, 1, even_microbatches(plan)).computing;
  };
  const int64_t few = computing(4, PipelineSchedule::GPipe);
  EXPECT_GT(computing(16, PipelineSchedule::GPipe), 2 * few);
  EXPECT_LE(computing(16, PipelineSchedule::OneFOneB), few);
}

/// Libraries have the context and communicators already, so only what is missing stays for them.
TEST_F(DeviceMemoryOfTraining, IsLeftToLibrariesAndOtherStreams) {
  const at::Device device = stand_in_device();
  const auto free_bytes = [&] {
    const MemoryCount count = testing::device().memory();
    return count.all - count.reserved;
  };
  const auto reserved_by = [&](bool has_room, int64_t bytes, int64_t others, int64_t missing) {
    const int64_t beside = free_bytes() - 64 * kMebibyte, before = device_memory(device)->reserved;
    take_beside_allocator(beside);
    EXPECT_EQ(reserve_device_memory(device, bytes * kMebibyte, others * kMebibyte,
                                    beside + missing * kMebibyte),
              has_room);
    take_beside_allocator(0);
    return (device_memory(device)->reserved - before) / kMebibyte;
  };
  EXPECT_EQ(reserved_by(true, 33, 0, 0), 33);
  EXPECT_EQ(reserved_by(true, 35, 20, -100), 35);
  EXPECT_EQ(reserved_by(true, 37, 7, 40), 17);  // fewer: the rest stays for libraries
  EXPECT_EQ(reserved_by(true, 39, 0, 70), 0);
  EXPECT_EQ(reserved_by(false, 41, 24, 0), 0);
  EXPECT_EQ(reserved_by(false, 65, 0, 0), 0);
}

TEST_F(DeviceMemoryOfTraining, WarnsIfTheDeviceHasTooLittle) {
  TinyRunOptions options = run_of("bf16", "full_shard");
  options.deck.data.row_tokens = 1 << 21;
  WatchedRun run(options);
  EXPECT_NE(reserve_for_steps(run.run.engine(), 1).find("a GPU does not have the "),
            std::string::npos);
  options.deck.run.cuda_graphs = 2;  // graphs have their own memory pool
  WatchedRun in_graphs(options);
  EXPECT_EQ(reserve_for_steps(in_graphs.run.engine(), 1), "");
  options.deck.run.cuda_graphs = 0;
  options.deck.run.ranks_per_gpu = 2;  // each would take what the other counts as free
  WatchedRun of_shared_gpu(options);
  EXPECT_EQ(reserve_for_steps(of_shared_gpu.run.engine(), 1), "");
}

TEST_F(DeviceMemoryOfTraining, LeavesOutWhatTheFirstStepLeft) {
  WatchedRun run(run_of("fp32", "no_shard"));
  run.train();
  const at::Tensor workspace =
      at::empty({3 * kMebibyte}, at::dtype(at::kByte).device(stand_in_device()));
  run.train();
  const std::string summary = run.watch.summary();
  EXPECT_EQ(told(summary, "beside"), 3 * kMebibyte) << summary;
  EXPECT_NEAR(told(summary, "counted"), static_cast<double>(run.watch.peak_bytes() - 3 * kMebibyte),
              0.01 * kMebibyte);
}

TEST_F(DeviceMemoryOfTraining, IsTheMostOfAllRanksSinceItWasTaken) {
  WatchedRun run(run_of("fp32", "full_shard"));
  run.train();
  const int64_t peak = run.watch.peak_bytes();
  IntervalFacts facts(run.run.control());
  const auto most = [&] {
    facts.begin(0, run.watch.take_device_memory());
    return facts.finish().most.value();
  };
  const DeviceMemory first = most();
  EXPECT_GE(first.peak_allocated, peak);
  EXPECT_LT(first.allocated, peak);
  EXPECT_GE(first.peak_reserved, first.peak_allocated);
  EXPECT_GE(first.reserved, first.allocated);

  // Memory at rest, except for one rank's.
  const auto of_one = [&] {
    const int64_t bytes = run.run.engine().world_rank() == 1 ? 2 * kMebibyte : 0;
    return at::empty({bytes}, at::dtype(at::kByte).device(stand_in_device()));
  };
  of_one();
  const DeviceMemory after = most();
  EXPECT_EQ(after.peak_allocated - after.allocated, 2 * kMebibyte);
  const DeviceMemory rest = most();
  EXPECT_EQ(rest.peak_allocated, rest.allocated);
  const at::Tensor held = of_one();
  EXPECT_EQ(most().allocated, rest.allocated + 2 * kMebibyte);
}

TEST_F(DeviceMemoryOfTraining, IsNoneOnTheHost) {
  TinyRunOptions options = run_of("fp32", "no_shard");
  options.device = at::kCPU;
  options.deck.run.device = DeviceKind::Cpu;
  EXPECT_FALSE(device_memory(at::kCPU));
  TensorBytes bytes;
  const MemoryDataset dataset =
      make_tiny_dataset(make_model_spec(options.config_json), 40, {1, 0, 2}, 5);
  TinyRun run(world().communicator(), make_mpi_collectives, dataset, options);
  MemoryWatch watch(bytes, run.engine(), dataset.index());
  EXPECT_FALSE(watch.take_device_memory());
}

}  // namespace
}  // namespace zea::testing::test_device_memory
