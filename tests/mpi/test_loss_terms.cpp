// SPDX-License-Identifier: Apache-2.0
// A unit may add a term to the loss: made-up units, each with a term of its own, have the loss and
// the gradient of one rank on every layout, and the gradient is that of the loss.
#include <gtest/gtest.h>

#include "support/mpi_main.hpp"
#include "support/stopped_run.hpp"
#include "support/strict_collectives.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_loss_terms {
namespace {

constexpr double kTolerance = 1e-10, kRate = 1e-6;

/// A block of the decoder and one of the encoder want small outputs, as a router wants small
/// logits.
UnitOutput run_with_terms(const UnitArguments& call) {
  UnitOutput made = run_unit(call);
  if (call.unit.name == "llm.layers.0" || call.unit.name == "vision.layers.1")
    made.loss = made.value.to(at::kDouble).square().sum() * 0.1;
  return made;
}

TinyRunOptions make_run() {
  TinyRunOptions run = stopped_run_options(tiny_llava_config());
  run.steps = 4;
  run.evaluates = true;
  run.run_unit = run_with_terms;
  return run;
}

MemoryDataset make_dataset() {
  return make_tiny_dataset(make_model_spec(tiny_llava_config()), 14, {1, 0, 2}, 5);
}

Communicator alone() {
  const Communicator world = testing::world().communicator();
  return world.split(world.rank(), "alone");
}

TEST(LossTerms, TheGradientIsThatOfTheLoss) {
  const MemoryDataset dataset = make_dataset();
  TinyRunOptions options = make_run();
  options.deck.optim = OptimOptions();
  options.deck.optim.kind = "sgd";
  options.deck.optim.lr = kRate;
  options.deck.optim.decay = "constant";
  options.deck.optim.clip_norm = 0;
  options.deck.schedule = {.steps = 1, .global_batch = 14};  // all of the data set
  TinyRunOptions plain = options;
  plain.run_unit = zea::run_unit;
  const Communicator ranks = alone();
  TinyRun without(ranks, make_mpi_collectives, dataset, plain);
  TinyRun run(ranks, make_mpi_collectives, dataset, options);
  TinyResult result;

  const double before = run.evaluate();
  run.train(1, result);
  const double after = run.evaluate();

  EXPECT_GT(before, without.evaluate() + 0.01);
  EXPECT_NEAR(result.losses[0], before, kTolerance);
  const double squares = result.grad_norms[0] * result.grad_norms[0];
  EXPECT_NEAR((before - after) / (kRate * squares), 1, 1e-3);
}

TEST(LossTerms, OfAnEvaluationAreThoseOfAllItsBatches) {
  const MemoryDataset dataset = make_dataset();
  const auto loss = [&](int64_t batch) {
    TinyRunOptions options = make_run();
    options.deck.schedule.global_batch = batch;
    return TinyRun(alone(), make_mpi_collectives, dataset, options).evaluate();
  };
  EXPECT_NEAR(loss(4), loss(14), kTolerance);
}

struct Layout {
  const char* name;
  void (*set)(Options&);
};

const Layout kLayouts[] = {
    {"DDP",
     [](Options& o) { o.meshes["vision"].strategy = o.meshes["llm"].strategy = "no_shard"; }},
    {"full_shard", [](Options&) {}},
    {"recomputed", [](Options& o) { o.model.activation_checkpointing = AutoOption::of_count(1); }},
    {"cp", [](Options& o) { o.meshes["llm"].cp = 2; }},
    {"tp, every rank all tokens",
     [](Options& o) {
       for (ModuleMeshOptions* mesh : {&o.meshes["llm"], &o.meshes["vision"]}) {
         mesh->tp = 2;
         mesh->sequence_parallel = AutoOption::of(false);
       }
     }},
    {"two stages", [](Options& o) { o.meshes["llm"].pp = 2; }},
    {"two stages, weight gradients put off, the encoder on ranks of its own",
     [](Options& o) {
       o.mesh.placement = "disjoint";
       o.mesh.schedule = "zero_bubble";
       o.meshes["vision"].pp = o.meshes["llm"].pp = 2;
     }},
};

TEST(LossTerms, AreTheSameOnEveryLayout) {
  const Communicator world = testing::world().communicator();
  const MemoryDataset dataset = make_dataset();
  const TinyResult expected = run_tiny(alone(), make_mpi_collectives, dataset, make_run());
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    TinyRunOptions run = make_run();
    layout.set(run.deck);
    const TinyResult got = run_tiny(world, make_strict_collectives, dataset, run);
    EXPECT_LE(max_difference(got.weights, expected.weights), kTolerance);
    EXPECT_NEAR(got.eval_loss, expected.eval_loss, kTolerance);
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(got.losses[step], expected.losses[step], kTolerance);
      EXPECT_NEAR(got.grad_norms[step], expected.grad_norms[step], kTolerance);
    }
  }
}

}  // namespace
}  // namespace zea::testing::test_loss_terms
