// SPDX-License-Identifier: Apache-2.0
// Experts that are chosen with a bias, which steps update to even their loads
// (optim.router_bias_update_rate): every layout trains as one rank, the update is its definition,
// and a run that goes on has the bits of one that never stopped.
#include <gtest/gtest.h>

#include <array>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "io/checkpoint.hpp"
#include "support/expert_layout.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/stopped_run.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_router_bias {
namespace {

constexpr double kRate = 1e-2;
constexpr const char* kBias = ".e_score_correction_bias";

using Layout = ExpertLayout;

constexpr std::array kLayouts{
    Layout{.name = "no shards", .ranks = 2, .strategy = "no_shard"},
    Layout{.name = "ep", .ranks = 4, .ep = 4},
    Layout{.name = "ep, no shards", .ranks = 4, .ep = 2, .strategy = "no_shard"},
    Layout{.name = "tp and ep", .ranks = 4, .ep = 2, .tp = 2},
    exchanging({.name = "cp and ep", .ranks = 4, .ep = 2, .strategy = "shard_grad_op", .cp = 2}),
    Layout{.name = "hybrid and ep",
           .ranks = 4,
           .ep = 2,
           .strategy = "hybrid_shard",
           .dp_replicate = 2},
    Layout{.name = "tp and cp", .ranks = 4, .tp = 2, .cp = 2},
    Layout{.name = "pp", .ranks = 2, .pp = 2},
    over_tp({.name = "ep over tp and dp_shard", .ranks = 4, .ep = 4, .tp = 2}),
    exchanging(over_tp(
        {.name = "ep over tp", .ranks = 4, .ep = 2, .strategy = "no_shard", .tp = 2, .cp = 2})),
};

TinyRunOptions base_run() {
  TinyRunOptions run = stopped_run_options(with_biased_experts(tiny_llava_config({.kv_heads = 2})));
  run.steps = 4;
  run.deck.data.row_tokens = 24;
  run.deck.optim.router_bias_update_rate = kRate;
  return run;
}

MemoryDataset dataset_of(const TinyRunOptions& run) {
  return make_tiny_dataset(make_model_spec(run.config_json), 16, {1, 0, 2}, 5);
}

class RouterBias : public ::testing::Test {
 protected:
  const Communicator alone_ = world().communicator().split(world().rank(), "alone");
};

TEST_F(RouterBias, EveryLayoutTrainsAsOneRank) {
  TinyRunOptions run = base_run();
  const MemoryDataset dataset = dataset_of(run);
  for (const int64_t recomputed : {0, 1}) {
    run.deck.model.activation_checkpointing = AutoOption::of_count(recomputed);
    const ComparedResult expected = run_compared(alone_, make_mpi_collectives, dataset, run);
    sweep(make_trials(kLayouts), [&](const Communicator& part, const Trial& trial) {
      const ComparedResult got =
          run_compared(part, trial.make, dataset, on_layout(run, kLayouts[trial.layout]));
      if (part.rank() != 0) return;
      expect_equal(got, expected);
      EXPECT_EQ(got.expert_imbalance, expected.expert_imbalance);
      // Counts are whole numbers: the biases have the same bits.
      for (const auto& [name, values] : expected.weights)
        if (name.ends_with(kBias)) {
          EXPECT_EQ(got.weights.at(name), values) << name;
        }
    });
  }
}

/// Routers of zeros score all experts alike: biases alone choose.
void set_routers(Engine& engine, const std::vector<double>& bias) {
  const Plan& plan = engine.plan();
  for (const auto& buffer : engine.buffers())
    for (const FlatParam& member : buffer->layout().params) {
      const std::string& name = plan.model.params[member.param].name;
      const at::Tensor values = buffer->master().narrow(0, member.offset, member.elements);
      if (name.ends_with(".mlp.gate.weight")) values.zero_();
      if (name.ends_with(kBias)) values.copy_(at::tensor(bias));
    }
  engine.broadcast_weights();
}

TEST_F(RouterBias, AStepRaisesThoseOfExpertsBelowTheMean) {
  TinyRunOptions run = base_run();
  const MemoryDataset dataset = dataset_of(run);
  // Groups {0, 1} and {6, 7} are the best, and 6, 7 and 1 in them: the mean of 8 experts is 3/8 of
  // the tokens.
  const std::vector<double> bias{0.1, 0.2, 0, 0, 0, 0, 0.3, 0.4};
  const std::vector<double> changed{0.11, 0.19, 0.01, 0.01, 0.01, 0.01, 0.29, 0.39};
  for (const double rate : {kRate, 0.0}) {
    run.deck.optim.router_bias_update_rate = rate;
    TinyRun one(alone_, make_mpi_collectives, dataset, run);
    set_routers(one.engine(), bias);
    TinyResult result;
    one.train(1, result);
    for (const auto& [layer, imbalance] : result.expert_imbalance.at(0))
      EXPECT_DOUBLE_EQ(imbalance, 8.0 / 3) << layer;
    EXPECT_EQ(result.expert_imbalance.at(0).size(), 2U);
    const Tensors weights = one.weights();
    for (const char* layer : {"1", "2"}) {
      const auto& found =
          weights.at(std::string("language_model.model.layers.") + layer + ".mlp.gate" + kBias);
      ASSERT_EQ(found.size(), bias.size());
      for (size_t e = 0; e < bias.size(); ++e)
        EXPECT_NEAR(found[e], rate > 0 ? changed[e] : bias[e], 1e-15) << layer << ", " << e;
    }
  }
}

/// The biases of a run in bf16 are in fp32: an update that bf16 would round away is kept.
TEST_F(RouterBias, BiasesAreInFp32WhateverTheModuleComputesIn) {
  TinyRunOptions run = base_run();
  run.deck.precision.preset = "bf16";
  run.deck.optim.router_bias_update_rate = 1e-5;
  const MemoryDataset dataset = dataset_of(run);
  TinyRun one(alone_, make_mpi_collectives, dataset, run);
  set_routers(one.engine(), std::vector<double>(8, 0.5));
  TinyResult result;
  one.train(1, result);
  for (const auto& [name, values] : one.weights())
    if (name.ends_with(kBias)) {
      for (const double value : values) EXPECT_NEAR(std::abs(value - 0.5), 1e-5, 1e-7) << name;
    }
}

TEST_F(RouterBias, ARunThatGoesOnHasTheBitsOfOneThatNeverStopped) {
  const SharedDirectory shared(world().communicator());
  const Communicator ranks = first_ranks(4);
  for (const char* preset : {"fp32", "bf16"})
    for (const Layout& layout : kLayouts) {
      SCOPED_TRACE(std::string(layout.name) + ", " + preset);
      if (layout.ranks != ranks.size()) continue;
      TinyRunOptions run = on_layout(base_run(), layout);
      run.deck.precision.preset = preset;
      const MemoryDataset dataset = dataset_of(run);
      const StoppedRun expected = run_through(ranks, make_mpi_collectives, dataset, run,
                                              shared / (std::string(layout.name) + preset));
      expect_resumes(ranks, make_mpi_collectives, dataset, run, expected, 0);
    }
}

/// Later checkpoints of a run link the files of values that never change.
TEST_F(RouterBias, EachCheckpointHasTheBiasesOfItsStep) {
  const SharedDirectory shared(world().communicator());
  const TinyRunOptions run = base_run();
  const MemoryDataset dataset = dataset_of(run);
  TinyRun one(alone_, make_mpi_collectives, dataset, run);
  CheckpointWriter writer(one.engine(), one.control());
  std::vector<std::pair<std::string, Tensors>> saved;
  for (int save = 0; save < 2; ++save) {
    TinyResult result;
    one.train(1, result);
    writer.start({.directory = shared / std::to_string(world().rank()),
                  .run_id = "run-1",
                  .position = one.position(),
                  .deck = ""});
    saved.emplace_back(writer.finish().path, one.weights());
  }
  for (const auto& [path, weights] : saved) {
    read_checkpoint(one.engine(), one.control(), CheckpointSource(path));
    EXPECT_EQ(max_difference(one.weights(), weights), 0) << path;
  }
}

TEST_F(RouterBias, ARunGoesOnAtAnotherLayout) {
  const SharedDirectory shared(world().communicator());
  const TinyRunOptions run = base_run();
  const MemoryDataset dataset = dataset_of(run);
  const Layout one{"one rank", 1};
  for (const size_t writer : {1, 3}) {
    const Layout& from = kLayouts[writer];
    const Communicator ranks = first_ranks(from.ranks);
    const StoppedRun stopped =
        run_through(ranks, make_mpi_collectives, dataset, on_layout(run, from), shared / from.name);
    shared.barrier();
    for (const Layout& to : {one, kLayouts[1], kLayouts[4], kLayouts[5], kLayouts[8]}) {
      SCOPED_TRACE(std::string(from.name) + " read by " + to.name);
      const Communicator readers = first_ranks(to.ranks);
      if (readers.size() > 0)
        expect_resumes(readers, make_mpi_collectives, dataset, on_layout(run, to), stopped);
    }
  }
}

}  // namespace
}  // namespace zea::testing::test_router_bias
