// SPDX-License-Identifier: Apache-2.0
// A buffer says over which ranks it is cut, sharded and summed: buffers of one module that differ
// in it train as one rank does, and parameters of which ranks have pieces of their own (as experts
// do) are summed, counted and written as their buffer says. The engine knows nothing of either.
#include <gtest/gtest.h>

#include <numeric>

#include "checkpoint/checkpoint_writer.hpp"
#include "checkpoint/load_weights.hpp"
#include "io/checkpoint.hpp"
#include "optim/optimizer.hpp"
#include "support/mpi_main.hpp"
#include "support/scattered_buffers.hpp"
#include "support/shared_directory.hpp"
#include "support/stopped_run.hpp"
#include "support/strict_collectives.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_buffer_axes {
namespace {

constexpr double kTolerance = 1e-10;

TinyRunOptions make_run(const std::string& strategy, int64_t cp = 1) {
  TinyRunOptions run = stopped_run_options(tiny_llava_config());
  run.steps = kStepsBeforeStop + kStepsAfterStop;
  run.deck.meshes["vision"].strategy = run.deck.meshes["llm"].strategy = strategy;
  run.deck.meshes["llm"].cp = cp;
  if (strategy == "hybrid_shard") run.deck.mesh.dp_replicate = 2;
  return run;
}

MemoryDataset make_dataset() {
  return make_tiny_dataset(make_model_spec(tiny_llava_config()), 23, {1, 0, 2}, 5);
}

TEST(BufferAxes, ScatteredBuffersTrainAsOneRank) {
  const Communicator world = testing::world().communicator();
  const Communicator alone = world.split(world.rank(), "alone");
  const MemoryDataset dataset = make_dataset();
  const TinyResult expected = run_tiny(alone, make_mpi_collectives, dataset, make_run("no_shard"));
  for (int64_t cp : {1, 2}) {
    SCOPED_TRACE(cp);
    TinyRunOptions run = make_run("hybrid_shard", cp);
    run.adjust = scatter_buffers;
    const TinyResult got = run_tiny(world, make_strict_collectives, dataset, run);
    EXPECT_LE(max_difference(got.weights, expected.weights), kTolerance);
    for (size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(got.losses[step], expected.losses[step], kTolerance);
      EXPECT_NEAR(got.grad_norms[step], expected.grad_norms[step], kTolerance);
    }
  }
}

TEST(BufferAxes, ScatteredBuffersAreWrittenAndReadOnce) {
  const Communicator world = testing::world().communicator();
  const SharedDirectory shared(world);
  const MemoryDataset dataset = make_dataset();
  TinyRunOptions scattered = make_run("hybrid_shard", 2);
  scattered.adjust = scatter_buffers;
  const TinyRunOptions usual = make_run("full_shard");
  const auto trial = [&](const TinyRunOptions& writer, const TinyRunOptions& reader,
                         const std::string& name) {
    const StoppedRun stopped =
        run_through(world, make_mpi_collectives, dataset, writer, shared / name);
    if (world.rank() == 0) CheckpointSource(stopped.checkpoint).check_all();
    expect_resumes(world, make_mpi_collectives, dataset, reader, stopped);
  };
  trial(scattered, usual, "scattered");
  trial(usual, scattered, "usual");
}

/// The made-up module: of each parameter of the decoder's blocks a rank along dp_shard has a half,
/// as if it were that of its experts. Its gradient is summed over the ranks with the same half.
class Experts : public ::testing::Test {
 protected:
  Experts()
      : world_(testing::world().communicator()),
        shared_(world_),
        plan_(make_expert_plan(world_.size())),
        mesh_(world_, plan_.mesh, make_mpi_collectives),
        control_(make_mpi_collectives(world_)),
        engine_(plan_, mesh_, at::kCPU) {
    load_weights(engine_, FilledSource(plan_.model, plan_.config_json, 1));
  }

  static bool is_expert(const std::string& name) {
    return name.find("language_model") != std::string::npos &&
           name.find(".layers.") != std::string::npos;
  }

  static Plan make_expert_plan(int ranks) {
    TinyRunOptions run = make_run("no_shard");
    run.deck.mesh.dp_replicate = 2;
    run.deck.meshes["vision"].bucket_mib = run.deck.meshes["llm"].bucket_mib = 0;
    Plan plan = make_plan(run.deck, run.config_json, ranks);
    for (size_t p = 0; p < plan.cuts.size(); ++p) {
      if (!is_expert(plan.model.params[p].name)) continue;
      plan.cuts[p].dim = 0;
      plan.cuts[p].shape[0] /= 2;
    }
    plan.buffers = make_flat_layout(plan.model, {}, plan.cuts);
    for (size_t g = 0; g < plan.buffers.size(); ++g) {
      if (!is_expert(plan.model.params[plan.buffers[g].params[0].param].name)) continue;
      plan.shardings[g].split_over = {Axis::DpShard};
      set_placement(plan.shardings[g], plan.mesh, plan.buffers[g].module, {}, {Axis::DpReplicate});
    }
    plan.slots = make_slots(plan.schedule_parts(), plan.precisions);
    return plan;
  }

  double sum_over_ranks(double value) {
    control_->all_reduce(&value, 1, DType::Float64, ReduceOp::Sum).wait();
    return value;
  }

  const Communicator world_;
  const SharedDirectory shared_;
  const Plan plan_;
  Mesh mesh_;
  std::unique_ptr<Collectives> control_;
  Engine engine_;
};

TEST_F(Experts, GradientsAreSummedOverTheRanksWithTheSameOnes) {
  int experts = 0;
  for (const auto& buffer : engine_.buffers()) {
    const bool expert = is_expert(plan_.model.params[buffer->layout().params[0].param].name);
    if (!buffer->trainable()) continue;
    buffer->open_gradient();
    buffer->gradient().fill_(world_.rank() + 1);
    buffer->start_reduce_replicas();
    buffer->finish_reduce_replicas();
    // Ranks 0 and 2 have the first halves, 1 and 3 the second ones.
    const double sum = expert ? (world_.rank() % 2 == 0 ? 1 + 3 : 2 + 4) : 1 + 2 + 3 + 4;
    EXPECT_EQ(buffer->gradient().min().item<double>(), sum) << buffer->layout().name;
    EXPECT_EQ(buffer->gradient().max().item<double>(), sum) << buffer->layout().name;
    experts += expert;
  }
  EXPECT_GT(experts, 0);
}

TEST_F(Experts, EveryElementIsCountedOnce) {
  double squares = 0;
  for (const ParamSpec& param : plan_.model.params) {
    if (!param.trainable) continue;
    std::vector<double> values(static_cast<size_t>(num_elements(param.shape)));
    FilledSource(plan_.model, "", 1)
        .read(param.name, param.shape, whole(param.shape), DType::Float64, values.data());
    squares = std::inner_product(values.begin(), values.end(), values.begin(), squares);
  }
  for (const auto& buffer : engine_.buffers())
    if (buffer->trainable()) buffer->gradient().copy_(buffer->master());

  const double counted = sum_over_ranks(Optimizer(engine_).own_sum_of_squares(1));

  EXPECT_NEAR(counted / squares, 1, 1e-12);
}

TEST_F(Experts, FilesHoldThemWhole) {
  const std::string path = write_checkpoint(
      engine_, *control_,
      {.directory = shared_.path(), .run_id = "run-1", .position = {}, .deck = "[run]\n"});
  const CheckpointSource source(path);
  if (world_.rank() == 0) source.check_all();
  for (const ParamSpec& param : plan_.model.params) {
    std::vector<double> wanted(static_cast<size_t>(num_elements(param.shape))), found(wanted);
    FilledSource(plan_.model, "", 1)
        .read(param.name, param.shape, whole(param.shape), DType::Float64, wanted.data());
    source.read(param.name, param.shape, whole(param.shape), DType::Float64, found.data());
    EXPECT_EQ(found, wanted) << param.name;
  }

  std::vector<at::Tensor> before;
  for (const auto& buffer : engine_.buffers()) {
    before.push_back(buffer->master().clone());
    buffer->master().fill_(7);
  }
  read_checkpoint(engine_, *control_, source);
  for (size_t g = 0; g < before.size(); ++g)
    EXPECT_TRUE(at::equal(engine_.buffers()[g]->master(), before[g])) << plan_.buffers[g].name;
}

}  // namespace
}  // namespace zea::testing::test_buffer_axes
