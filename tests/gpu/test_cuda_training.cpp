// SPDX-License-Identifier: Apache-2.0
// Training on GPUs, over NCCL, against training on the CPU. Skipped without a GPU.
#include <gtest/gtest.h>

#include "support/mpi_main.hpp"
#include "support/open_gpu.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_run.hpp"

namespace zea::testing::test_cuda_training {
namespace {

TinyRunOptions make_run(const std::string& strategy) {
  TinyRunOptions run;
  run.config_json = tiny_llava_config({.kv_heads = 1});
  run.steps = 5;
  run.deck.data.row_tokens = 24;
  run.deck.schedule = {.steps = 5, .global_batch = 8};
  run.deck.meshes["vision"].strategy = run.deck.meshes["llm"].strategy = strategy;
  return run;
}

MemoryDataset dataset_of(const TinyRunOptions& run) {
  return make_tiny_dataset(make_model_spec(run.config_json), 32, {1, 0, 2}, 5);
}

class CudaTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
    device_ = open_gpu(testing::world());
  }

  TinyResult on_gpu(TinyRunOptions run) {
    run.device = device_;
    return run_tiny(testing::world().communicator(), collectives_of(device_), dataset_of(run), run);
  }
  /// Where the state of every buffer lies, and whether that memory is pinned.
  void expect_state_lies(TinyRunOptions run, bool on_host, bool pinned) {
    run.device = device_;
    const MemoryDataset dataset = dataset_of(run);
    TinyRun training(testing::world().communicator(), collectives_of(device_), dataset, run);
    for (const auto& buffer : training.engine().buffers()) {
      if (!buffer) continue;
      std::vector<at::Tensor> held{buffer->master()};
      if (buffer->trainable())
        held.insert(held.end(),
                    {training.engine().state(*buffer, "exp_avg"),
                     training.engine().state(*buffer, "exp_avg_sq"), buffer->gradient()});
      for (const at::Tensor& state : held) {
        EXPECT_EQ(state.is_cpu(), on_host) << buffer->layout().name;
        EXPECT_EQ(state.is_cpu() && state.is_pinned(), pinned) << buffer->layout().name;
      }
    }
  }
  static TinyResult on_cpu(const TinyRunOptions& run) {
    return run_tiny(testing::world().communicator(), make_mpi_collectives, dataset_of(run), run);
  }

  at::Device device_ = at::kCPU;
};

TEST_F(CudaTraining, GivesTheLossesOfTheCpu) {
  for (const char* strategy : {"no_shard", "full_shard", "shard_grad_op"}) {
    const TinyRunOptions run = make_run(strategy);
    const TinyResult cpu = on_cpu(run), gpu = on_gpu(run);
    for (size_t step = 0; step < cpu.losses.size(); ++step)
      EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 1e-4) << strategy << " step " << step;
  }
}

TEST_F(CudaTraining, TrainsInBf16) {
  TinyRunOptions run = make_run("full_shard");
  const TinyResult exact = on_cpu(run);
  run.deck.precision.preset = "bf16";
  const TinyResult got = on_gpu(run);
  for (size_t step = 0; step < exact.losses.size(); ++step)
    EXPECT_NEAR(got.losses[step], exact.losses[step], 0.05);
}

TEST_F(CudaTraining, OffloadKeepsTheStateInHostMemory) {
  TinyRunOptions run = make_run("full_shard");
  run.deck.run.device = "cuda";
  expect_state_lies(run, false, false);
  for (bool pinned : {false, true}) {
    for (ModuleMeshOptions* mesh : {&run.deck.meshes["vision"], &run.deck.meshes["llm"]}) {
      mesh->cpu_offload = true;
      mesh->pin_memory = AutoOption::of(pinned);
    }
    expect_state_lies(run, true, pinned);
  }
}

TEST_F(CudaTraining, OffloadEqualsNoOffloadWithAccumulation) {
  for (bool pinned : {false, true}) {
    TinyRunOptions run = make_run("full_shard");
    run.deck.run.device = "cuda";
    const TinyResult here = on_gpu(run);
    for (ModuleMeshOptions* mesh : {&run.deck.meshes["vision"], &run.deck.meshes["llm"]}) {
      mesh->cpu_offload = true;
      mesh->pin_memory = AutoOption::of(pinned);
    }
    const TinyResult offloaded = on_gpu(run);
    for (size_t step = 0; step < here.losses.size(); ++step)
      EXPECT_NEAR(offloaded.losses[step], here.losses[step], 1e-6) << pinned;
  }
}

/// Every step takes all samples, in their order: one shape.
TEST_F(CudaTraining, GraphsOfStepsGiveTheirLosses) {
  for (const char* strategy : {"no_shard", "full_shard"})
    for (const char* preset : {"fp32", "bf16"}) {
      TinyRunOptions run = make_run(strategy);
      run.deck.run.device = "cuda";
      run.deck.precision.preset = preset;
      run.deck.data.shuffle = false;
      run.device = device_;
      const MemoryDataset data = make_tiny_dataset(make_model_spec(run.config_json),
                                                   run.deck.schedule.global_batch, {1, 0, 2}, 5);
      const auto train = [&](int64_t graphs) {
        run.deck.run.cuda_graphs = graphs;
        return run_tiny(testing::world().communicator(), collectives_of(device_), data, run);
      };
      const TinyResult eager = train(0), graphs = train(1);
      EXPECT_EQ(graphs.graphs.replayed, run.steps - 2);
      for (size_t step = 0; step < eager.losses.size(); ++step)
        EXPECT_NEAR(graphs.losses[step], eager.losses[step], 1e-5) << strategy << " step " << step;
    }
}

/// Steps of two shapes, of which one graph is kept: the second is captured into the pool that the
/// first had.
TEST_F(CudaTraining, GraphsOfStepsFollowEachOther) {
  TinyRunOptions run = make_run("full_shard");
  run.deck.run.device = "cuda";
  run.deck.data.shuffle = false;
  run.device = device_;
  run.steps = run.deck.schedule.steps = 6;
  const ModelSpec model = make_model_spec(run.config_json);
  std::vector<Sample> samples;
  for (int64_t step = 0; step < run.steps; ++step) {
    const MemoryDataset like = make_tiny_dataset(model, run.deck.schedule.global_batch, {1, 0, 2},
                                                 step < run.steps / 2 ? 5 : 6);
    for (int64_t id = 0; id < run.deck.schedule.global_batch; ++id)
      samples.push_back(like.read(id));
  }
  const MemoryDataset data(std::move(samples), item_kinds(model));
  const auto train = [&](int64_t graphs) {
    run.deck.run.cuda_graphs = graphs;
    return run_tiny(testing::world().communicator(), collectives_of(device_), data, run);
  };
  const TinyResult eager = train(0), graphs = train(1);
  EXPECT_EQ(graphs.graphs.captured, 2);
  EXPECT_EQ(graphs.graphs.replayed, 2);
  for (size_t step = 0; step < eager.losses.size(); ++step)
    EXPECT_NEAR(graphs.losses[step], eager.losses[step], 1e-5) << "step " << step;
}

}  // namespace
}  // namespace zea::testing::test_cuda_training
