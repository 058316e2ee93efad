// SPDX-License-Identifier: Apache-2.0
// The losses that routers add are over the global batch: every layout and every way to cut a step
// into microbatches has the loss, the gradients and the weights of one rank with one microbatch.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "support/expert_layout.hpp"
#include "support/mpi_main.hpp"
#include "support/stopped_run.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_router_losses {
namespace {

using Layout = ExpertLayout;

constexpr std::array kLayouts{
    Layout{.name = "more microbatches", .ranks = 1, .strategy = "no_shard"},
    Layout{.name = "dp", .ranks = 4, .strategy = "no_shard"},
    Layout{.name = "ep", .ranks = 4, .ep = 4},
    Layout{.name = "tp and ep", .ranks = 4, .ep = 2, .tp = 2},
    Layout{.name = "tp, every rank all tokens", .ranks = 2, .tp = 2, .sequence_parallel = false},
    exchanging({.name = "cp and ep", .ranks = 4, .ep = 2, .strategy = "shard_grad_op", .cp = 2}),
    Layout{.name = "tp and cp", .ranks = 4, .tp = 2, .cp = 2},
    Layout{.name = "pp and tp", .ranks = 4, .tp = 2, .pp = 2},
    over_tp({.name = "ep over tp and dp_shard", .ranks = 4, .ep = 4, .tp = 2}),
};

struct Losses {
  double aux, z;
  const char* scope = "pooled";
  bool are_sigmoids = false;  ///< scores of experts
};

constexpr std::array kLosses{Losses{0.5, 0}, Losses{0.5, 0.1, "layer"}, Losses{0, 0.2},
                             Losses{.aux = 0, .z = 0.2, .are_sigmoids = true}};

/// Three layers, of which the second is dense, or the first if scores are sigmoids.
TinyRunOptions base_run(const Losses& losses) {
  const std::string config = tiny_llava_config({.kv_heads = 2, .layers = 3});
  TinyRunOptions run = stopped_run_options(losses.are_sigmoids ? with_biased_experts(config)
                                                               : with_experts(config, 4));
  run.steps = 3;
  run.deck.data.row_tokens = 512;
  run.deck.llm.router_aux_loss_coef = losses.aux;
  run.deck.llm.router_z_loss_coef = losses.z;
  run.deck.llm.router_aux_loss_scope = losses.scope;
  return run;
}

TinyRunOptions on_short_rows(TinyRunOptions run, const Layout& layout) {
  run.deck.data.row_tokens = 24;
  return on_layout(std::move(run), layout);
}

MemoryDataset dataset_of(const TinyRunOptions& run) {
  return make_tiny_dataset(make_model_spec(run.config_json), 16, {1, 0, 2}, 5);
}

class RouterLossRuns : public ::testing::TestWithParam<Losses> {
 protected:
  const Communicator alone_ = world().communicator().split(world().rank(), "alone");
};

TEST_P(RouterLossRuns, EveryLayoutTrainsAsOneRank) {
  TinyRunOptions run = base_run(GetParam());
  const MemoryDataset dataset = dataset_of(run);
  const ComparedResult expected = run_compared(alone_, make_mpi_collectives, dataset, run);
  run.deck.model.activation_checkpointing = AutoOption::of_count(2);
  sweep(make_trials(kLayouts), [&](const Communicator& part, const Trial& trial) {
    const ComparedResult got =
        run_compared(part, trial.make, dataset, on_short_rows(run, kLayouts[trial.layout]));
    if (part.rank() == 0) expect_equal(got, expected);
  });
}

/// The loss is that of the targets and what routers add; its gradient is the one that is made.
TEST_P(RouterLossRuns, TheGradientIsThatOfTheLoss) {
  constexpr double kRate = 1e-6;
  TinyRunOptions run = base_run(GetParam());
  run.deck.optim = OptimOptions();
  run.deck.optim.kind = "sgd";
  run.deck.optim.momentum = 0;
  run.deck.optim.lr = kRate;
  run.deck.optim.decay = "constant";
  run.deck.optim.clip_norm = 0;
  run.deck.schedule = {.steps = 2, .global_batch = 16};  // all of the data set
  const MemoryDataset dataset = dataset_of(run);
  TinyRunOptions plain = run;
  plain.deck.llm.router_aux_loss_coef = 0;
  plain.deck.llm.router_z_loss_coef = 0;
  plain.deck.llm.router_aux_loss_scope = "pooled";
  TinyResult without, with;
  TinyRun(alone_, make_mpi_collectives, dataset, plain).train(2, without);
  TinyRun(alone_, make_mpi_collectives, dataset, run).train(2, with);
  EXPECT_GT(with.losses[0], without.losses[0] + 0.1);
  const double squares = with.grad_norms[0] * with.grad_norms[0];
  EXPECT_NEAR((with.losses[0] - with.losses[1]) / (kRate * squares), 1, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(All, RouterLossRuns, ::testing::ValuesIn(kLosses));

/// Experts of equal loads and scores have the least auxiliary loss, the number of layers or 1, and
/// a z-loss of log(experts)^2 in each layer.
TEST(RouterLossScale, EvenRoutersHaveTheLossOfTheirExperts) {
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  const auto z_loss = [](double experts) { return 2 * std::log(experts) * std::log(experts); };
  const std::pair<Losses, double> cases[] = {
      {{1, 0, "pooled"}, 2},
      {{1, 0, "layer"}, 4},
      {{0, 0.5}, 0.5 * z_loss(4)},
      {{.aux = 0, .z = 0.5, .are_sigmoids = true}, 0.5 * z_loss(8)}};
  for (const auto& [with, expected] : cases) {
    TinyRunOptions run = base_run(with);
    TinyRunOptions plain = base_run({.aux = 0, .z = 0, .are_sigmoids = with.are_sigmoids});
    std::vector<double> losses;
    for (const TinyRunOptions& one : {run, plain}) {
      const MemoryDataset dataset = dataset_of(one);
      TinyRun made(alone, make_mpi_collectives, dataset, one);
      for (const auto& buffer : made.engine().buffers())
        for (const FlatParam& member : buffer->layout().params)
          if (made.engine().plan().model.params[member.param].name.ends_with(".mlp.gate.weight"))
            buffer->master().narrow(0, member.offset, member.elements).zero_();
      made.engine().broadcast_weights();
      TinyResult result;
      made.train(1, result);
      losses.push_back(result.losses[0]);
    }
    // Scores of 1/4 each: 4 x the sum of loads 2 x 1/4, whichever two experts are chosen; of each
    // of two layers.
    EXPECT_NEAR(losses[0] - losses[1], expected, 1e-12) << with.scope << " z " << with.z;
  }
}

}  // namespace
}  // namespace zea::testing::test_router_losses
