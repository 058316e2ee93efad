// SPDX-License-Identifier: Apache-2.0
// Parameters that optim.frozen leaves as they are: for good, where units that are frozen as a whole
// have no gradient and give the same bits; for some updates, after which they train as if the run
// had begun there; or after some. Rates and decay that change after some updates. The same on every
// layout, and where a run goes on.
#include <gtest/gtest.h>

#include "support/axis_layouts.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"

namespace zea::testing::test_frozen_rules {
namespace {

constexpr double kTolerance = 1e-10;

TinyRunOptions with_rules(TinyRunOptions run, const std::vector<std::string>& frozen) {
  run.deck.optim.frozen = frozen;
  run.steps = kStepsBeforeStop + kStepsAfterStop;
  return run;
}

TEST(FrozenRules, ForGoodIsForMoreUpdatesThanThereAre) {
  const MemoryDataset dataset = axis_dataset();
  const Communicator world = testing::world().communicator();
  for (const std::string pattern : {"vision", "*.layers.1.*", "*.bias", "*norm*", "*q_proj*"}) {
    SCOPED_TRACE(pattern);
    const TinyRunOptions run = run_on({"full_shard"}, "fp64");
    const TinyResult always =
        run_tiny(world, make_mpi_collectives, dataset, with_rules(run, {pattern}));
    const TinyResult long_enough =
        run_tiny(world, make_mpi_collectives, dataset, with_rules(run, {pattern + " = 1000"}));
    EXPECT_LE(max_difference(always.weights, long_enough.weights), kTolerance);
    for (size_t step = 0; step < always.losses.size(); ++step) {
      EXPECT_NEAR(always.losses[step], long_enough.losses[step], kTolerance);
      EXPECT_NEAR(always.grad_norms[step], long_enough.grad_norms[step], kTolerance);
    }
  }
}

/// The same as a run that begins when the part is unfrozen: its first update has number 1.
TEST(FrozenRules, AThawedParameterBeginsAnew) {
  const MemoryDataset dataset = axis_dataset();
  const Communicator alone =
      testing::world().communicator().split(testing::world().rank(), "alone");
  TinyRunOptions options = with_rules(run_on({"full_shard"}, "fp64"), {"vision = 3"});
  options.deck.optim.clip_norm = 0;
  options.deck.optim.weight_decay = 0;
  options.deck.optim.decay = "constant";
  TinyRun run(alone, make_mpi_collectives, dataset, options);
  const std::string name = "vision_tower.encoder.layers.0.mlp.fc1.weight";
  const Tensors before = run.weights();
  TinyResult result;
  run.train(3, result);
  EXPECT_EQ(run.weights().at(name), before.at(name));
  EXPECT_EQ(run.state("exp_avg").at(name), std::vector<double>(before.at(name).size(), 0));
  const std::string trained = "language_model.model.layers.0.mlp.up_proj.weight";
  EXPECT_NE(run.weights().at(trained), before.at(trained));

  run.train(1, result);

  // Adam's first step is lr g / (|g| + eps), whatever the gradient: lr where it is not tiny.
  const std::vector<double> after = run.weights().at(name), moment = run.state("exp_avg").at(name);
  for (size_t i = 0; i < after.size(); ++i) {
    const double gradient = moment[i] / (1 - options.deck.optim.betas[0]);
    EXPECT_NEAR(before.at(name)[i] - after[i],
                options.deck.optim.lr * gradient / (std::abs(gradient) + options.deck.optim.eps),
                1e-12);
  }
}

/// A rate that becomes 0 without decay, and freezing, leave the same values; a rate that changes is
/// that of a run which goes on with another.
void expect_later_rules(const char* optimizer) {
  const MemoryDataset dataset = axis_dataset();
  const Communicator alone =
      testing::world().communicator().split(testing::world().rank(), "alone");
  TinyRunOptions options = with_rules(run_on({"full_shard"}, "fp64"), {});
  options.deck.optim.kind = optimizer;
  options.deck.optim.clip_norm = 0;
  options.deck.optim.decay = "constant";
  const std::string name = "vision_tower.encoder.layers.0.mlp.fc1.weight",
                    other = "language_model.model.layers.0.mlp.up_proj.weight";
  const auto trained = [&](int64_t steps, const std::vector<std::string>& factors,
                           const std::vector<std::string>& decays,
                           const std::vector<std::string>& frozen) {
    TinyRunOptions ruled = options;
    ruled.deck.optim.lr_factors = factors;
    ruled.deck.optim.weight_decays = decays;
    ruled.deck.optim.frozen = frozen;
    TinyRun run(alone, make_mpi_collectives, dataset, ruled);
    TinyResult result;
    run.train(steps, result);
    return run.weights();
  };
  const Tensors until = trained(3, {}, {}, {}), stopped = trained(5, {}, {}, {"vision from 3"}),
                slow = trained(5, {"vision = 0 from 3"}, {}, {});
  EXPECT_EQ(stopped.at(name), until.at(name));
  EXPECT_EQ(slow.at(name), until.at(name)) << "decay is part of the rate";
  EXPECT_NE(stopped.at(other), until.at(other));

  const Tensors usual = trained(4, {}, {"vision = 0"}, {}),
                faster = trained(4, {"vision = 2 from 3"}, {"vision = 0"}, {}),
                before = trained(3, {}, {"vision = 0"}, {}),
                decayed = trained(4, {}, {"vision = 0", "vision = 10 from 3"}, {});
  for (size_t i = 0; i < usual.at(name).size(); ++i) {
    const double step = usual.at(name)[i] - before.at(name)[i];
    EXPECT_NEAR(faster.at(name)[i], before.at(name)[i] + 2 * step, 1e-12);
    EXPECT_NEAR(decayed.at(name)[i],
                usual.at(name)[i] - 10 * options.deck.optim.lr * before.at(name)[i], 1e-12);
  }
}

TEST(FrozenRules, RatesAndDecayChangeAfterSomeUpdates) {
  for (const char* optimizer : {"adamw", "muon"}) {
    SCOPED_TRACE(optimizer);
    expect_later_rules(optimizer);
  }
}

TEST(FrozenRules, AreTheSameOnEveryLayoutAndWhereARunGoesOn) {
  const SharedDirectory shared(world().communicator());
  const MemoryDataset dataset = axis_dataset();
  const Communicator ranks = first_ranks(kAxisRanks);
  const Communicator alone = ranks.split(ranks.rank(), "alone");
  const std::vector<std::string> rules{"vision = 4", "*.embed_tokens.weight = 2",
                                       "*.layers.1.mlp.*", "*.layers.0.self_attn.* = 1",
                                       "*input_layernorm.weight from 4"};
  const auto ruled = [&](const AxisLayout& layout) {
    TinyRunOptions options = with_rules(run_on(layout, "fp64"), rules);
    options.deck.optim.lr_factors = {"*norm* = 0.5 from 1", "*up_proj* = 2",
                                     "*up_proj* = 3 from 4"};
    options.deck.optim.weight_decays = {"*down_proj* = 0.5 from 2"};
    return options;
  };
  const TinyResult expected =
      run_tiny(alone, make_mpi_collectives, dataset, ruled({.name = "alone"}));
  for (const AxisLayout& layout :
       {AxisLayout{"full_shard"}, AxisLayout{.name = "tp and cp", .tp = 2, .cp = 2},
        AxisLayout{.name = "pp, zero bubble", .pp = 2, .schedule = "zero_bubble"}}) {
    SCOPED_TRACE(layout.name);
    const TinyRunOptions options = ruled(layout);
    const TinyResult got = run_tiny(ranks, make_mpi_collectives, dataset, options);
    EXPECT_LE(max_difference(got.weights, expected.weights), kTolerance);
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(got.losses[step], expected.losses[step], kTolerance);
      EXPECT_NEAR(got.grad_norms[step], expected.grad_norms[step], kTolerance);
    }
    const StoppedRun stopped =
        run_through(ranks, make_mpi_collectives, dataset, options, shared / layout.name);
    expect_resumes(ranks, make_mpi_collectives, dataset, options, stopped, 0);
  }
}

}  // namespace
}  // namespace zea::testing::test_frozen_rules
