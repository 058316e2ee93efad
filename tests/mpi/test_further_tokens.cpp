// SPDX-License-Identifier: Apache-2.0
// Multi-token prediction: the head's loss and gradients are those of one rank on every layout and
// however samples are packed, its gradient is that of the loss, evaluations and texts are those of
// the model without it, and checkpoints have it.
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/stopped_run.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_qwen2_vl.hpp"
#include "support/tiny_qwen3_next.hpp"

namespace zea::testing::test_further_tokens {
namespace {

constexpr int64_t kSamples = 16;

struct Layout {
  const char* name;
  int ranks;
  void (*set)(Options&);
};

void share_columns(Options& o, bool deals_rows) {
  o.meshes["llm"].tp = 2;
  o.meshes["llm"].sequence_parallel = AutoOption::of(deals_rows);
}

const Layout kLayouts[] = {
    {"more microbatches", 1, [](Options&) {}},
    {"DDP", 4, [](Options& o) { o.meshes["llm"].strategy = "no_shard"; }},
    {"full_shard, recomputed", 4,
     [](Options& o) { o.model.activation_checkpointing = AutoOption::of_count(1); }},
    {"ZeRO-2, each parameter alone", 2,
     [](Options& o) {
       o.meshes["llm"].strategy = "shard_grad_op";
       o.meshes["llm"].flatten_parameters = false;
     }},
    {"tp, rows dealt", 2, [](Options& o) { share_columns(o, true); }},
    {"tp, every rank all rows", 2, [](Options& o) { share_columns(o, false); }},
    {"tp and full_shard", 4, [](Options& o) { share_columns(o, true); }},
};

TinyRunOptions make_run(const std::string& config_json) {
  TinyRunOptions run = stopped_run_options(config_json);
  run.steps = 3;
  run.evaluates = true;
  run.deck.data.row_tokens = 512;
  run.deck.llm.mtp_loss_coef = 0.3;
  if (!make_model_spec(config_json).encoders.empty()) run.remake = shrink_images;
  return run;
}

std::string tied_config() {
  nlohmann::json config = nlohmann::json::parse(tiny_hybrid_config("qwen3_5_text"));
  config["tie_word_embeddings"] = true;
  return config.dump();
}

class FurtherTokens : public ::testing::TestWithParam<std::string> {
 protected:
  static MemoryDataset dataset_of(const TinyRunOptions& run) {
    ModelSpec model = make_model_spec(run.config_json);
    if (run.remake) run.remake(model);
    return make_tiny_dataset(model, kSamples, {1, 0, 2}, 5);
  }
  const Communicator alone_ = world().communicator().split(world().rank(), "alone");
};

TEST_P(FurtherTokens, EveryLayoutTrainsAsOneRank) {
  TinyRunOptions run = make_run(GetParam());
  const MemoryDataset dataset = dataset_of(run);
  const ComparedResult expected = run_compared(alone_, make_mpi_collectives, dataset, run);
  ASSERT_TRUE(expected.weights.contains("mtp.layers.0.self_attn.q_proj.weight"));
  run.deck.data.row_tokens = 64;
  sweep(make_trials(kLayouts), [&](const Communicator& part, const Trial& trial) {
    TinyRunOptions other = run;
    kLayouts[trial.layout].set(other.deck);
    const ComparedResult got = run_compared(part, trial.make, dataset, other);
    if (part.rank() != 0) return;
    expect_equal(got, expected);
    EXPECT_NEAR(got.eval_loss, expected.eval_loss, kSameTraining);
  });
}

/// A step of SGD that changes little.
TinyRunOptions make_small_step(const std::string& config_json, double rate) {
  TinyRunOptions run = make_run(config_json);
  run.deck.optim = OptimOptions();
  run.deck.optim.kind = "sgd";
  run.deck.optim.momentum = 0;
  run.deck.optim.lr = rate;
  run.deck.optim.decay = "constant";
  run.deck.optim.clip_norm = 0;
  run.deck.schedule = {.steps = 2, .global_batch = kSamples};  // all of the data set
  return run;
}

TEST_P(FurtherTokens, TheGradientIsThatOfTheLoss) {
  constexpr double kRate = 1e-8;
  const TinyRunOptions run = make_small_step(GetParam(), kRate);
  const MemoryDataset dataset = dataset_of(run);
  TinyResult result;
  TinyRun(alone_, make_mpi_collectives, dataset, run).train(2, result);
  const double squares = result.grad_norms[0] * result.grad_norms[0];
  EXPECT_NEAR((result.losses[0] - result.losses[1]) / (kRate * squares), 1, 1e-3);
}

TEST_P(FurtherTokens, EvaluationsLeaveTheHeadOut) {
  TinyRunOptions run = make_small_step(GetParam(), 1e-6);
  const MemoryDataset dataset = dataset_of(run);
  TinyRun with(alone_, make_mpi_collectives, dataset, run);
  TinyResult result;
  const double before = with.evaluate();
  with.train(1, result);
  // About as much as guessing costs, of not quite as many tokens as there are targets.
  EXPECT_NEAR((result.losses[0] - before) / 0.3, before, 0.5 * before);
  EXPECT_EQ(predictions_on(alone_, make_mpi_collectives, dataset, run),
            predictions_on(alone_, make_mpi_collectives, dataset, run, kWithoutCache));
}

TEST_P(FurtherTokens, CheckpointsHaveTheHead) {
  TinyRunOptions run = make_run(GetParam());
  const MemoryDataset dataset = dataset_of(run);
  const SharedDirectory directory(world().communicator());
  const StoppedRun expected =
      run_through(world().communicator(), make_mpi_collectives, dataset, run, directory.path());
  run.deck.meshes["llm"].tp = 2;
  expect_resumes(world().communicator(), make_mpi_collectives, dataset, run, expected);
}

INSTANTIATE_TEST_SUITE_P(All, FurtherTokens,
                         ::testing::Values(tiny_hybrid_config("qwen3_5_text"), tied_config(),
                                           tiny_qwen3_5_config()));

std::string refusal(const std::string& config, void (*set)(Options&), int ranks = 2) {
  TinyRunOptions run = make_run(config);
  set(run.deck);
  try {
    plan_of(run, ranks);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(FurtherTokensRefusals, SayWhatIsNotBuilt) {
  const auto expect = [](const std::string& text, const char* sentence) {
    EXPECT_NE(text.find(sentence), std::string::npos) << text;
  };
  const std::string dense = tiny_hybrid_config("qwen3_5_text");
  expect(refusal(tiny_hybrid_config("qwen3_next"), [](Options&) {}),
         "model.llm.mtp_loss_coef = 0.3, but the model (qwen3_next) has no head of multi-token "
         "prediction that zea trains");
  expect(refusal(dense, [](Options& o) { o.meshes["llm"].pp = 2; }),
         "mesh.llm.pp = 2 and cp = 1: the head is not built for these yet");
  expect(refusal(dense, [](Options& o) { o.meshes["llm"].cp = 2; }),
         "mesh.llm.pp = 1 and cp = 2: the head is not built for these yet");
  expect(refusal(dense, [](Options& o) { o.llm.lora.targets = {"q_proj"}; }),
         "adapters of the head are not built yet");
  expect(refusal(tiny_qwen3_5_config(), [](Options& o) { o.llm.train = false; }),
         "but the language model is frozen");
}

}  // namespace
}  // namespace zea::testing::test_further_tokens
