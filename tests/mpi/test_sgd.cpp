// SPDX-License-Identifier: Apache-2.0
// SGD with momentum, the proof that an optimizer is its states and a function: torch's formula, the
// same on every layout, one state in memory and in files, under its own name and in its own type.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "estimate/memory_estimate.hpp"
#include "io/checkpoint.hpp"
#include "optim/update.hpp"
#include "support/files.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/stopped_run.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_sgd {
namespace {

constexpr double kTolerance = 1e-10;

/// Six steps in fp64, with clipping, warm-up, decay and factors of single parameters.
TinyRunOptions make_run(const std::string& kind, const std::string& strategy) {
  TinyRunOptions run = stopped_run_options(tiny_llava_config());
  run.steps = kStepsBeforeStop + kStepsAfterStop;
  run.deck.optim.kind = kind;
  run.deck.optim.lr = 0.1;
  run.deck.optim.lr_factors = {"vision = 0.5", "*.layers.1.* = 0.7"};
  run.deck.meshes["vision"].strategy = run.deck.meshes["llm"].strategy = strategy;
  if (strategy.starts_with("hybrid")) run.deck.mesh.dp_replicate = 2;
  return run;
}

MemoryDataset make_dataset() {
  return make_tiny_dataset(make_model_spec(tiny_llava_config()), 23, {1, 0, 2}, 5);
}

Communicator alone() {
  const Communicator world = testing::world().communicator();
  return world.split(world.rank(), "alone");
}

/// Bytes of all tensors at the start of a run.
int64_t standing_bytes(const TinyRunOptions& run) {
  const MemoryDataset dataset = make_dataset();
  TinyRun made(testing::world().communicator(), make_mpi_collectives, dataset, run);
  return made.engine().ledger().now_bytes();
}

/// Returns the bytes that a rank keeps in addition to its masters, by the plan.
int64_t state_bytes(const TinyRunOptions& run) {
  Plan plan = make_plan(run.deck, run.config_json, testing::world().size());
  if (run.adjust) run.adjust(plan);
  return estimate_memory(plan, testing::world().rank(), {full_microbatch(plan)}).states;
}

void narrow_state(Plan& plan) {
  plan.optimizer.states[0].dtype = DType::Float32;
}

TEST(Sgd, IsTorchs) {
  const int64_t size = 1000;
  at::Tensor master = at::randn({size}, at::kDouble), buffer = at::zeros({size}, at::kDouble);
  std::vector<double> parameter(master.data_ptr<double>(), master.data_ptr<double>() + size),
      velocity(parameter.size());
  OptimOptions optim;
  optim.momentum = 0.8;
  for (int64_t step = 1; step <= 5; ++step) {
    const at::Tensor gradient = at::randn({size}, at::kDouble);
    const Update update{.lr = 0.1 / static_cast<double>(step),
                        .weight_decay = 0.05,
                        .gradient_scale = 0.3,
                        .step = step};

    update_sgd({{master, gradient, {buffer}, update}}, optim);

    // torch.optim.SGD: the first step takes the gradient itself for its buffer.
    for (int64_t i = 0; i < size; ++i) {
      const double decayed = gradient.data_ptr<double>()[i] * 0.3 + 0.05 * parameter[i];
      velocity[i] = step == 1 ? decayed : 0.8 * velocity[i] + decayed;
      parameter[i] -= update.lr * velocity[i];
      ASSERT_NEAR(master.data_ptr<double>()[i], parameter[i], 1e-12);
      ASSERT_NEAR(buffer.data_ptr<double>()[i], velocity[i], 1e-12);
    }
  }
}

TEST(Sgd, IsTheSameOnEveryLayout) {
  const MemoryDataset dataset = make_dataset();
  const TinyResult expected =
      run_tiny(alone(), make_mpi_collectives, dataset, make_run("sgd", "no_shard"));
  const TinyResult adam =
      run_tiny(alone(), make_mpi_collectives, dataset, make_run("adamw", "no_shard"));
  EXPECT_GT(max_difference(adam.weights, expected.weights), 1e-4);
  for (const char* strategy : {"no_shard", "full_shard", "shard_grad_op", "hybrid_shard"}) {
    SCOPED_TRACE(strategy);
    const TinyResult got = run_tiny(testing::world().communicator(), make_host_collectives, dataset,
                                    make_run("sgd", strategy));
    EXPECT_LE(max_difference(got.weights, expected.weights), kTolerance);
    for (size_t step = 0; step < expected.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step], expected.losses[step], kTolerance);
  }
  TinyRunOptions grid = make_run("sgd", "full_shard");
  grid.deck.meshes["llm"].tp = grid.deck.meshes["vision"].tp = 2;
  const TinyResult got =
      run_tiny(testing::world().communicator(), make_host_collectives, dataset, grid);
  EXPECT_LE(max_difference(got.weights, expected.weights), kTolerance);
}

TEST(Sgd, GoesOnBitByBit) {
  const SharedDirectory shared(testing::world().communicator());
  const MemoryDataset dataset = make_dataset();
  const Communicator world = testing::world().communicator();
  TinyRunOptions narrow = make_run("sgd", "full_shard");
  narrow.adjust = narrow_state;
  for (const TinyRunOptions& run : {make_run("sgd", "full_shard"), make_run("sgd", "hybrid_shard"),
                                    make_run("adamw", "full_shard"), narrow}) {
    const std::string directory =
        shared / (run.deck.optim.kind.name() + run.deck.meshes["llm"].strategy +
                  (run.adjust ? "narrow" : ""));
    const StoppedRun stopped = run_through(world, make_mpi_collectives, dataset, run, directory);
    TinyRun again(world, make_mpi_collectives, dataset, run);
    again.position() =
        read_checkpoint(again.engine(), again.control(), CheckpointSource(stopped.checkpoint));
    EXPECT_EQ(again.states(), stopped.states);
    TinyResult after;
    again.train(kStepsAfterStop, after);
    EXPECT_EQ(after.losses, stopped.losses_after) << directory;
    EXPECT_EQ(again.weights(), stopped.final_weights) << directory;
    const TinyRunOptions other = make_run(run.deck.optim.kind.name(), "no_shard");
    if (!run.adjust) expect_resumes(world, make_mpi_collectives, dataset, other, stopped);
  }
}

TEST(Sgd, FilesNameItsState) {
  const SharedDirectory shared(testing::world().communicator());
  const MemoryDataset dataset = make_dataset();
  TinyRunOptions run = make_run("sgd", "full_shard");
  run.deck.llm.train = false;
  TinyRun sgd(testing::world().communicator(), make_mpi_collectives, dataset, run);
  const std::string path = write_checkpoint(
      sgd.engine(), sgd.control(),
      {.directory = shared.path(), .run_id = "run-1", .position = {}, .deck = "[run]\n"});

  const CheckpointSource source(path);
  for (const ParamSpec& param : sgd.engine().plan().model.params)
    EXPECT_EQ(source.states(param.name), param.trainable
                                             ? std::vector<std::string>{"momentum_buffer"}
                                             : std::vector<std::string>{})
        << param.name;
  if (sgd.control().rank() == 0) source.check_all();
}

TEST(Sgd, AnotherOptimizersStateIsRefused) {
  const SharedDirectory shared(testing::world().communicator());
  const MemoryDataset dataset = make_dataset();
  const auto begin = [&](const TinyRunOptions& run) {
    return std::make_unique<TinyRun>(testing::world().communicator(), make_mpi_collectives, dataset,
                                     run);
  };
  const auto save = [&](TinyRun& run, const std::string& name) {
    return write_checkpoint(
        run.engine(), run.control(),
        {.directory = shared / name, .run_id = "run-1", .position = {}, .deck = "[run]\n"});
  };
  const TinyRunOptions adamw = make_run("adamw", "full_shard"), adam = make_run("adam", "no_shard"),
                       sgd = make_run("sgd", "full_shard");
  const auto of_adamw = begin(adamw), of_adam = begin(adam), of_sgd = begin(sgd);
  const std::string adamws = save(*of_adamw, "adamw"), sgds = save(*of_sgd, "sgd");
  const auto refusal = [](TinyRun& run, const std::string& path) {
    try {
      read_checkpoint(run.engine(), run.control(), CheckpointSource(path));
    } catch (const PlanError& error) {
      return std::string(error.what());
    }
    return std::string();
  };

  EXPECT_EQ(refusal(*of_adamw, sgds),
            sgds +
                ": it holds momentum_buffer of what it trained, but optim.kind = \"adamw\" goes on "
                "from exp_avg, exp_avg_sq; go on with optim.kind = \"sgd\", or start a new run "
                "with these weights as model.weights");
  EXPECT_TRUE(contains(refusal(*of_sgd, adamws),
                       "go on with optim.kind = \"adamw\" or optim.kind = \"adam\""));
  EXPECT_EQ(refusal(*of_adam, adamws), "") << "the same states";

  // A model that is not trained needs no states.
  TinyRunOptions evaluates = adamw;
  evaluates.deck.run.mode = "evaluate";
  evaluates.deck.data.eval = "eval.h5";
  EXPECT_EQ(refusal(*begin(evaluates), sgds), "");
}

TEST(Sgd, HoldsOneStateOfItsType) {
  const TinyRunOptions adamw = make_run("adamw", "full_shard"), sgd = make_run("sgd", "full_shard");
  TinyRunOptions narrow = sgd;
  narrow.adjust = narrow_state;
  EXPECT_EQ(2 * state_bytes(sgd), state_bytes(adamw));
  EXPECT_EQ(2 * state_bytes(narrow), state_bytes(sgd));
  EXPECT_EQ(standing_bytes(adamw) - standing_bytes(sgd), state_bytes(adamw) - state_bytes(sgd));
  EXPECT_EQ(standing_bytes(sgd) - standing_bytes(narrow), state_bytes(sgd) - state_bytes(narrow));
}

TEST(Sgd, KeysOfOthersAreRefused) {
  const auto fault = [](const std::function<void(OptimOptions&)>& change) {
    Options deck;
    change(deck.optim);
    return error_of([&] { make_plan(deck, tiny_llava_config(), 1); });
  };
  EXPECT_EQ(fault([](OptimOptions& optim) { optim.momentum = 0.5; }),
            "optim.momentum is set, but optim.kind = \"adamw\" has betas, eps; leave it out, or "
            "choose optim.kind = \"sgd\"");
  EXPECT_EQ(fault([](OptimOptions& optim) { optim.kind = "sgd", optim.eps = 1e-6; }),
            "optim.eps is set, but optim.kind = \"sgd\" has momentum; leave it out, or choose "
            "optim.kind = \"adamw\"");
  EXPECT_EQ(fault([](OptimOptions& optim) { optim.kind = "sgd", optim.momentum = 0.5; }), "");
  EXPECT_EQ(fault([](OptimOptions& optim) { optim.kind = "adam", optim.eps = 1e-6; }), "");
}

}  // namespace
}  // namespace zea::testing::test_sgd
