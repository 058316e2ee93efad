// SPDX-License-Identifier: Apache-2.0
// AdamW with 8-bit moments in blocks: blocks are of rows of tensors, so that training is the same
// on every layout; memory, files, resume, and refusals. The kernel: test_blockwise_adamw.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/load_weights.hpp"
#include "estimate/memory_estimate.hpp"
#include "support/axis_layouts.hpp"
#include "support/files.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "zea/checkpoint.hpp"

namespace zea::testing::test_adamw_8bit {
namespace {

constexpr double kTolerance = 1e-10;

/// Some matrices have 4096 elements or more: those of the language model, except k_proj and v_proj.
std::string config_of(int64_t intermediate) {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.tied = true}));
  config["text_config"]["hidden_size"] = 64;
  config["text_config"]["head_dim"] = 16;
  config["text_config"]["intermediate_size"] = intermediate;
  return config.dump();
}

TinyRunOptions run_of(const AxisLayout& layout, const char* kind, const char* preset = "fp64",
                      int64_t intermediate = 128) {
  TinyRunOptions run = run_on(layout, preset);
  run.config_json = config_of(intermediate);
  run.deck.optim.kind = kind;
  run.steps = kStepsBeforeStop + kStepsAfterStop;
  return run;
}

TinyRunOptions replicated(TinyRunOptions run, const char* strategy) {
  run.deck.meshes["vision"].strategy = run.deck.meshes["llm"].strategy = strategy;
  if (std::string(strategy) == "hybrid_shard") run.deck.mesh.dp_replicate = 2;
  return run;
}

MemoryDataset make_dataset() {
  return make_tiny_dataset(make_model_spec(config_of(128)), 23, {1, 0, 2}, 5);
}

class Adamw8Bit : public ::testing::Test {
 protected:
  const MemoryDataset dataset_ = make_dataset();
  const Communicator ranks_ = first_ranks(kAxisRanks);
  const Communicator alone_ = ranks_.split(ranks_.rank(), "alone");
};

TEST_F(Adamw8Bit, IsTheSameOnEveryLayout) {
  const TinyResult expected =
      run_tiny(alone_, make_mpi_collectives, dataset_, run_of({.name = "alone"}, "adamw_8bit"));
  const TinyResult wide =
      run_tiny(alone_, make_mpi_collectives, dataset_, run_of({.name = "alone"}, "adamw"));
  EXPECT_GT(max_difference(wide.weights, expected.weights), 1e-4);
  for (size_t step = 0; step < expected.losses.size(); ++step)
    EXPECT_NEAR(wide.losses[step], expected.losses[step], 0.05);
  const auto compare = [&](const char* name, const TinyRunOptions& options) {
    SCOPED_TRACE(name);
    const TinyResult got = run_tiny(ranks_, make_host_collectives, dataset_, options);
    EXPECT_LE(max_difference(got.weights, expected.weights), kTolerance);
    for (size_t step = 0; step < expected.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step], expected.losses[step], kTolerance);
  };
  for (const char* strategy : {"no_shard", "shard_grad_op", "full_shard", "hybrid_shard"})
    compare(strategy, replicated(run_of({.name = "data"}, "adamw_8bit"), strategy));
  for (const AxisLayout& layout :
       {AxisLayout{.name = "tp", .tp = 2}, AxisLayout{.name = "tp and cp", .tp = 2, .cp = 2},
        AxisLayout{.name = "pp and tp", .tp = 2, .pp = 2, .schedule = "zero_bubble"}})
    compare(layout.name, run_of(layout, "adamw_8bit"));
}

/// Rows of 72 elements are cut at 36: blocks of 8 there, of 4 on two ranks.
TEST_F(Adamw8Bit, IsNearWhereTpCutsBlocks) {
  const AxisLayout tp{.name = "tp", .tp = 2};
  const TinyResult expected = run_tiny(alone_, make_mpi_collectives, dataset_,
                                       run_of({.name = "alone"}, "adamw_8bit", "fp64", 72));
  const TinyResult got =
      run_tiny(ranks_, make_host_collectives, dataset_, run_of(tp, "adamw_8bit", "fp64", 72));
  EXPECT_GT(max_difference(got.weights, expected.weights), kTolerance);
  for (size_t step = 0; step < expected.losses.size(); ++step)
    EXPECT_NEAR(got.losses[step], expected.losses[step], 0.02);
}

int64_t told_states(const TinyRunOptions& run, int ranks) {
  const Plan plan = plan_of(run, ranks);
  return estimate_memory(plan, testing::world().rank() % ranks, {full_microbatch(plan)}).states;
}

TEST_F(Adamw8Bit, TakesAQuarterAsPredicted) {
  const auto standing = [&](const TinyRunOptions& run) {
    return TinyRun(ranks_, make_mpi_collectives, dataset_, run).engine().ledger().now_bytes();
  };
  for (const AxisLayout& layout : {AxisLayout{"full_shard"}, AxisLayout{.name = "tp", .tp = 2}}) {
    const TinyRunOptions wide = run_of(layout, "adamw", "fp32"),
                         narrow = run_of(layout, "adamw_8bit", "fp32");
    EXPECT_EQ(standing(wide) - standing(narrow),
              told_states(wide, kAxisRanks) - told_states(narrow, kAxisRanks));
  }
  TinyRunOptions wide = run_of({"full_shard"}, "adamw", "fp32");
  nlohmann::json config = nlohmann::json::parse(config_of(2048));
  config["text_config"]["hidden_size"] = 1024;
  wide.config_json = config.dump();
  TinyRunOptions narrow = wide;
  narrow.deck.optim.kind = "adamw_8bit";
  EXPECT_LT(4 * told_states(narrow, kAxisRanks), 1.1 * told_states(wide, kAxisRanks));
}

int64_t bytes_below(const std::string& directory) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  return bytes;
}

TEST_F(Adamw8Bit, GoesOnBitByBitAndOnOtherLayouts) {
  const SharedDirectory shared(testing::world().communicator());
  std::map<std::string, int64_t> bytes;
  for (const char* kind : {"adamw", "adamw_8bit"})
    bytes[kind] =
        bytes_below(run_through(ranks_, make_mpi_collectives, dataset_,
                                replicated(run_of({.name = "data"}, kind, "fp32"), "hybrid_shard"),
                                shared / kind)
                        .checkpoint);
  EXPECT_LT(bytes["adamw_8bit"], bytes["adamw"] - 100000);

  const AxisLayout tp{.name = "tp", .tp = 2}, data{"full_shard"};
  for (const AxisLayout& layout : {tp, data}) {
    const TinyRunOptions options = run_of(layout, "adamw_8bit");
    const StoppedRun stopped =
        run_through(ranks_, make_mpi_collectives, dataset_, options, shared / layout.name);
    open_state(stopped.checkpoint)->check_all();
    expect_resumes(ranks_, make_mpi_collectives, dataset_, options, stopped, 0);
    for (const AxisLayout& other : {tp, data})
      expect_resumes(ranks_, make_mpi_collectives, dataset_, run_of(other, "adamw_8bit"), stopped);
    expect_resumes(ranks_, make_mpi_collectives, dataset_, replicated(options, "no_shard"),
                   stopped);
  }
}

TEST_F(Adamw8Bit, StatesOfOthersAreRefused) {
  const SharedDirectory shared(testing::world().communicator());
  const auto save = [&](const TinyRunOptions& run, const char* name) {
    return run_through(ranks_, make_mpi_collectives, dataset_, run, shared / name).checkpoint;
  };
  const auto refusal = [&](const TinyRunOptions& run, const std::string& path) {
    TinyRun made(ranks_, make_mpi_collectives, dataset_, run);
    return error_of([&] { read_checkpoint(made.engine(), made.control(), *open_state(path)); });
  };
  const AxisLayout data{"full_shard"}, tp{.name = "tp", .tp = 2};
  const std::string wide = save(run_of(data, "adamw"), "wide"),
                    narrow = save(run_of(data, "adamw_8bit"), "narrow"),
                    cut = save(run_of(data, "adamw_8bit", "fp64", 72), "cut");
  EXPECT_TRUE(contains(refusal(run_of(data, "adamw_8bit"), wide),
                       "it holds exp_avg, exp_avg_sq of what it trained, but optim.kind = "
                       "\"adamw_8bit\" goes on from exp_avg_codes, exp_avg_scales, "
                       "exp_avg_sq_codes, exp_avg_sq_scales; go on with optim.kind = \"adamw\""));
  EXPECT_TRUE(contains(refusal(run_of(data, "adamw"), narrow),
                       "go on with optim.kind = \"adamw_8bit\", or start a new run"));
  EXPECT_TRUE(contains(refusal(run_of(tp, "adamw_8bit", "fp64", 72), cut),
                       "has a scale of exp_avg_scales for each 8 elements of a row, on this mesh "
                       "for 4, as tp leaves no more of its rows whole"));
}

}  // namespace
}  // namespace zea::testing::test_adamw_8bit
