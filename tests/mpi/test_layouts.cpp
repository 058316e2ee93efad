// SPDX-License-Identifier: Apache-2.0
// The table of layouts: in fp64, five steps of AdamW with clipping give the same losses and weights
// on one rank and on any layout of several, packed or not, with or without activation
// checkpointing, under the collectives in shared memory and the strict ones: of every layout some
// scenarios under the ones, the rest under the others.
#include <gtest/gtest.h>

#include "support/compared_run.hpp"
#include "support/mpi_main.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_run.hpp"

namespace zea::testing::test_layouts {
namespace {

constexpr double kTolerance = 1e-10;

struct Layout {
  const char* name;
  int ranks;
  const char* vision;
  const char* llm;
  int dp_replicate = 1;
  bool packing = true;
  int64_t activation_checkpointing = 0;
  int64_t row_tokens = 64;
  int64_t rows_per_microbatch = 1;
  void (*refine)(ModuleMeshOptions&) = nullptr;  ///< of both modules
};

const Layout kLayouts[] = {
    {"one rank, a sample a row", 1, "no_shard", "no_shard", 1, false},
    {"one rank, checkpointed", 1, "no_shard", "no_shard", 1, true, 1},
    {"one rank, long rows", 1, "no_shard", "no_shard", 1, true, 0, 200, 2},
    {"one rank, full_shard", 1, "full_shard", "full_shard"},
    {"one rank, hybrid_shard_zero2", 1, "hybrid_shard_zero2", "hybrid_shard", 1, true, 0, 24},
    {"two ranks, DDP", 2, "no_shard", "no_shard"},
    {"two ranks, full_shard", 2, "full_shard", "full_shard"},
    {"three ranks, full_shard, checkpointed", 3, "full_shard", "full_shard", 1, true, 2},
    {"three ranks, vision DDP, llm full_shard", 3, "no_shard", "full_shard"},
    {"four ranks, DDP", 4, "no_shard", "no_shard"},
    {"four ranks, full_shard", 4, "full_shard", "full_shard"},
    {"four ranks, full_shard, a sample a row", 4, "full_shard", "full_shard", 1, false},
    {"four ranks, vision full_shard, llm DDP, checkpointed", 4, "full_shard", "no_shard", 1, true,
     1},
    {"four ranks, two replicas of two shards", 4, "hybrid_shard", "hybrid_shard", 2},
    {"four ranks, everything in one row", 4, "full_shard", "no_shard", 1, true, 0, 400},
    {"DDP, a bucket per unit", 3, "no_shard", "no_shard", 1, true, 0, 24, 1,
     [](ModuleMeshOptions& mesh) { mesh.bucket_mib = 0; }},
    {"DDP, small buckets", 2, "no_shard", "no_shard", 1, true, 0, 24, 1,
     [](ModuleMeshOptions& mesh) { mesh.bucket_mib = 0.02; }},
    {"shard_grad_op", 3, "shard_grad_op", "shard_grad_op", 1, true, 1, 24},
    {"hybrid_shard_zero2, vision DDP", 4, "no_shard", "hybrid_shard_zero2", 2},
    {"hybrid_shard that keeps parameters until backward", 4, "hybrid_shard", "hybrid_shard", 2,
     true, 0, 24, 1,
     [](ModuleMeshOptions& mesh) { mesh.reshard_after_forward = AutoOption::of(false); }},
    {"resharded to groups of two", 4, "full_shard", "full_shard", 1, true, 2, 24, 1,
     [](ModuleMeshOptions& mesh) { mesh.reshard_after_forward = AutoOption::of_count(2); }},
    {"no prefetch", 2, "full_shard", "full_shard", 1, true, 0, 24, 1,
     [](ModuleMeshOptions& mesh) { mesh.forward_prefetch = mesh.backward_prefetch = "none"; }},
    {"prefetch after, three ahead", 4, "full_shard", "full_shard", 1, true, 0, 24, 1,
     [](ModuleMeshOptions& mesh) {
       mesh.forward_prefetch = mesh.backward_prefetch = "post";
       mesh.prefetch_depth = 3;
     }},
    {"prefetch of four units, groups of two", 4, "full_shard", "full_shard", 1, true, 1, 24, 1,
     [](ModuleMeshOptions& mesh) {
       mesh.prefetch_depth = 4;
       mesh.reshard_after_forward = AutoOption::of_count(2);
     }},
    {"two units wrapped", 3, "full_shard", "full_shard", 1, true, 2, 24, 1,
     [](ModuleMeshOptions& mesh) { mesh.wrap_units = 2; }},
    {"a module wrapped, reduced once", 2, "full_shard", "shard_grad_op", 1, true, 0, 24, 1,
     [](ModuleMeshOptions& mesh) {
       mesh.wrap_units = 0;
       mesh.sync_grad_accum = AutoOption::of(false);
     }},
    {"a buffer for each parameter", 3, "full_shard", "full_shard", 1, true, 0, 24, 1,
     [](ModuleMeshOptions& mesh) { mesh.flatten_parameters = false; }},
    {"each parameter, two units, reduced once, replicas", 4, "hybrid_shard", "hybrid_shard_zero2",
     2, true, 1, 24, 1,
     [](ModuleMeshOptions& mesh) {
       mesh.flatten_parameters = false;
       mesh.wrap_units = 2;
       mesh.prefetch_depth = 2;
       mesh.sync_grad_accum = AutoOption::of(false);
     }},
    {"reduced once per step", 4, "full_shard", "full_shard", 1, true, 0, 24, 1,
     [](ModuleMeshOptions& mesh) { mesh.sync_grad_accum = AutoOption::of(false); }},
};

struct Scenario {
  const char* name;
  TinyLlava model;
  std::vector<int> images;  ///< per sample, repeating
  bool train_vision = true, train_projector = true, train_llm = true;
  bool adapts = false;  ///< with dropout
};

const Scenario kScenarios[] = {
    {"several images, some without", {}, {1, 0, 2}},
    {"tied, GQA, frozen vision", {.tied = true, .kv_heads = 1}, {1, 0, 0, 0, 0}, false},
    {"frozen vision and llm", {}, {1, 1, 0}, false, true, false},
    {"tied, no images at all", {.tied = true}, {0}},
    {"one image in the whole batch", {}, {0, 0, 0, 0, 0, 0, 1}},
    {"images and sound", {.audio = true, .audio_positions = 4}, {0, 1, 1, 0}},
    {"adapters", {.audio = true, .audio_positions = 4}, {0, 1, 1, 0}, true, true, true, true},
};

TinyRunOptions make_run(const Scenario& scenario, const Layout& layout) {
  TinyRunOptions run;
  run.config_json = tiny_llava_config(scenario.model);
  run.evaluates = true;
  run.deck.precision.preset = "fp64";
  run.deck.encoders["vision"] = {.train = scenario.train_vision,
                                 .train_projector = scenario.train_projector};
  run.deck.llm.train = scenario.train_llm;
  if (scenario.adapts) {
    run.deck.llm.lora = {.targets = {"*"}, .rank = 3, .dropout = 0.2};
    run.deck.encoders["vision"].lora = {.targets = {"fc1", "linear_2"}, .rank = 2, .dropout = 0.4};
    run.deck.encoders["audio"].lora = {.targets = {"*"}, .rank = 2, .dropout = 0.1};
  }
  run.deck.mesh.dp_replicate = layout.dp_replicate;
  run.deck.meshes["vision"].strategy = layout.vision;
  run.deck.meshes["llm"].strategy = layout.llm;
  if (layout.refine)
    for (ModuleMeshOptions* mesh : {&run.deck.meshes["vision"], &run.deck.meshes["llm"]})
      layout.refine(*mesh);
  if (scenario.model.audio) run.deck.meshes["audio"] = run.deck.meshes["vision"];
  run.deck.data.packing = layout.packing;
  run.deck.data.row_tokens = layout.row_tokens;
  run.deck.data.rows_per_microbatch = layout.rows_per_microbatch;
  run.deck.model.activation_checkpointing = AutoOption::of_count(layout.activation_checkpointing);
  OptimOptions& optim = run.deck.optim;
  optim.lr = 1e-2;
  optim.warmup_steps = 2;
  optim.weight_decay = 0.1;
  optim.clip_norm = 0.5;
  optim.lr_factors = {"vision = 0.5", "*.layers.1.* = 0.7"};
  optim.weight_decays = {"*.bias = 0.2", "*embed* = 0"};
  run.steps = 5;  // the samples are begun anew in the fourth
  run.deck.schedule = {.steps = run.steps, .global_batch = 7};
  return run;
}

/// The layout that all others are compared with: one rank, everything packed.
const Layout kReference{"reference", 1, "no_shard", "no_shard"};

class Layouts : public ::testing::TestWithParam<int> {};

TEST_P(Layouts, EqualOneRank) {
  const Scenario& scenario = kScenarios[GetParam()];
  const Communicator world = testing::world().communicator();
  const ModelSpec model = make_model_spec(tiny_llava_config(scenario.model));
  const MemoryDataset dataset = make_tiny_dataset(model, 23, scenario.images, 5);
  const Communicator alone = world.split(world.rank(), "alone");
  const TinyResult expected =
      run_tiny(alone, make_mpi_collectives, dataset, make_run(scenario, kReference));
  for (double norm : expected.grad_norms) ASSERT_GT(norm, 0);

  std::vector<Trial> trials;
  for (size_t i = 0; i < std::size(kLayouts); ++i)
    trials.push_back(make_trial(std::string(scenario.name) + "; " + kLayouts[i].name, i,
                                kLayouts[i].ranks, (i + GetParam()) % 2 == 1));
  sweep(trials, [&](const Communicator& part, const Trial& trial) {
    const TinyResult got =
        run_tiny(part, trial.make, dataset, make_run(scenario, kLayouts[trial.layout]));
    EXPECT_LE(max_difference(got.weights, expected.weights), kTolerance);
    EXPECT_NEAR(got.eval_loss, expected.eval_loss, kTolerance);
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(got.losses[step], expected.losses[step], kTolerance);
      EXPECT_NEAR(got.grad_norms[step], expected.grad_norms[step], kTolerance);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Layouts,
                         ::testing::Range(0, static_cast<int>(std::size(kScenarios))));

}  // namespace
}  // namespace zea::testing::test_layouts
