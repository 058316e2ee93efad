// SPDX-License-Identifier: Apache-2.0
// Models with gated delta rules train with every optimizer as on one rank, and resume: at the same
// layout bit for bit, at another one in fp64 but for rounding. Their prompts take what is
// predicted.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "estimate/memory_estimate.hpp"
#include "parallel/device_memory.hpp"
#include "support/axis_layouts.hpp"
#include "support/made_up_models.hpp"
#include "support/measured_models.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"

namespace zea::testing::test_scan_training {
namespace {

/// Wide enough for moments of 8 bits.
std::string config() {
  nlohmann::json config = nlohmann::json::parse(tiny_llava_config({.tied = true}));
  config["text_config"]["hidden_size"] = 64;
  config["text_config"]["head_dim"] = 16;
  return config.dump();
}

struct ScanLayout {
  AxisLayout axes;
  CpScan scan = CpScan::Auto;
};

const ScanLayout kLayouts[] = {
    {{.name = "full_shard"}},
    {{.name = "tp and cp, heads", .tp = 2, .cp = 2}, CpScan::Ulysses},
    {{.name = "cp, states", .cp = 2, .cp_mode = "ulysses"}, CpScan::States},
    {{.name = "pp and cp, states", .cp = 2, .pp = 2, .schedule = "zero_bubble"}, CpScan::States},
};

TinyRunOptions options_on(const ScanLayout& layout, const char* preset, const char* kind) {
  TinyRunOptions run = run_on(layout.axes, preset);
  run.config_json = config();
  run.remake = mix_delta_rules;
  run.steps = kStepsBeforeStop + kStepsAfterStop;
  run.deck.optim.kind = kind;
  // Gradients of these models are large, so that Adam would turn rounding errors into updates.
  run.deck.optim.eps = 1;
  run.deck.optim.lr = 1e-3;
  if (std::string(kind) == "muon") run.deck.optim.momentum = 0.95;
  if (layout.axes.cp > 1) run.deck.meshes["llm"].cp_scan = layout.scan;
  return run;
}

class ScanTraining : public ::testing::Test {
 protected:
  const Communicator ranks_ = first_ranks(kAxisRanks);
  const Communicator alone_ = ranks_.split(ranks_.rank(), "alone");
  const MemoryDataset dataset_ = make_tiny_dataset(make_model_spec(config()), 23, {1, 0, 2}, 5);
};

TEST_F(ScanTraining, IsTheSameOnEveryLayoutWithEveryOptimizer) {
  for (const char* kind : {"adamw_8bit", "muon"}) {
    const TinyResult expected = run_tiny(alone_, make_mpi_collectives, dataset_,
                                         options_on({{.name = "alone"}}, "fp64", kind));
    for (const ScanLayout& layout : kLayouts) {
      SCOPED_TRACE(std::string(kind) + ", " + layout.axes.name);
      const TinyResult got =
          run_tiny(ranks_, make_host_collectives, dataset_, options_on(layout, "fp64", kind));
      EXPECT_LE(max_difference(got.weights, expected.weights), kSameTraining);
      for (size_t step = 0; step < expected.losses.size(); ++step)
        EXPECT_NEAR(got.losses[step], expected.losses[step], kSameTraining);
    }
  }
}

TEST_F(ScanTraining, GoesOnBitForBit) {
  const SharedDirectory shared(ranks_);
  for (const char* preset : {"fp32", "bf16"})
    for (const ScanLayout& layout : kLayouts) {
      SCOPED_TRACE(std::string(preset) + ", " + layout.axes.name);
      const TinyRunOptions options = options_on(layout, preset, "adamw");
      const StoppedRun stopped = run_through(ranks_, make_mpi_collectives, dataset_, options,
                                             shared / (std::string(preset) + layout.axes.name));
      expect_resumes(ranks_, make_mpi_collectives, dataset_, options, stopped, 0);
    }
}

TEST_F(ScanTraining, GoesOnOnAnotherLayout) {
  const SharedDirectory shared(ranks_);
  for (const ScanLayout& layout : kLayouts) {
    const StoppedRun stopped =
        run_through(ranks_, make_mpi_collectives, dataset_, options_on(layout, "fp64", "adamw"),
                    shared / layout.axes.name);
    for (const ScanLayout& other : kLayouts) {
      SCOPED_TRACE(std::string(layout.axes.name) + " to " + other.axes.name);
      expect_resumes(ranks_, make_mpi_collectives, dataset_, options_on(other, "fp64", "adamw"),
                     stopped);
    }
  }
}

/// States of prompts do not pass: cp ranks exchange tokens for heads, or each scans all heads of
/// all tokens where they cannot share the heads.
TEST_F(ScanTraining, TakesNoMoreForPromptsThanIsPredicted) {
  constexpr int64_t kTokens = 2, kSamples = 120;
  for (const int64_t key_heads : {4, 2}) {
    TinyRunOptions run;
    nlohmann::json config = nlohmann::json::parse(measured_model("qwen3_next").config);
    config["linear_num_key_heads"] = key_heads;
    config["vocab_size"] = 64;  // tokens that have names
    run.config_json = config.dump();
    ModuleMeshOptions& mesh = run.deck.meshes["llm"];
    mesh.cp = 4;
    mesh.cp_distribution = "uniform";
    mesh.cp_scan = CpScan::States;
    run.deck.run.mode = RunMode::Generate;
    run.deck.eval.generate_tokens = kTokens;
    run.deck.data.row_tokens = 1400;
    run.deck.schedule = {.steps = 1, .global_batch = kSamples};
    const Plan plan = plan_of(run, kAxisRanks);
    const MemoryDataset dataset = make_tiny_dataset(plan.model, kSamples, {0}, 3);
    std::vector<int64_t> all(kSamples);
    std::iota(all.begin(), all.end(), 0);
    const StepPlan step = plan.step_plan(0, all, dataset.index());
    const int rank = ranks_.rank();
    const int64_t told =
        estimate_memory(plan, rank, step.replicas[plan.replica_of(rank)], dataset.index()).total();
    int64_t tokens = 0;
    for (const SampleIndex& sample : dataset.index()) tokens += sample.tokens;
    const int64_t kept =
        kv_bytes_per_token(plan, rank) * (tokens / kAxisRanks + kSamples * kTokens) +
        state_bytes_per_sample(plan, rank) * kSamples;
    const TensorBytes bytes;
    predictions_on(ranks_, make_mpi_collectives, dataset, run, {.generate_tokens = kTokens});
    // Caches of later blocks fill after the peak.
    const auto text = [&] {
      return std::to_string(key_heads) + " key heads: predicted " + std::to_string(told) + " and " +
             std::to_string(kept) + " kept, counted " + std::to_string(bytes.peak());
    };
    EXPECT_GE(told + kept, bytes.peak()) << text();
    EXPECT_LE(static_cast<double>(told), 1.25 * static_cast<double>(bytes.peak())) << text();
  }
}

}  // namespace
}  // namespace zea::testing::test_scan_training
