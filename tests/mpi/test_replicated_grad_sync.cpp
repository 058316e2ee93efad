// SPDX-License-Identifier: Apache-2.0
// A parameter that several tp ranks replicate gets the sum of their gradients, everything else
// keeps its own; one call serves each group of ranks.
#include "parallel/replicated_grad_sync.hpp"

#include <gtest/gtest.h>

#include <set>

#include "parallel/engine.hpp"
#include "support/mpi_main.hpp"
#include "support/recording_collectives.hpp"
#include "support/tiny_llava.hpp"

namespace zea::testing::test_replicated_grad_sync {
namespace {

struct Grid {
  int llm_tp, llm_cp, vision_tp;
  bool sequence_parallel;
  const char* strategy = "full_shard";
};

const Grid kGrids[] = {{1, 1, 1, true}, {2, 1, 1, true},  {2, 2, 2, true, "no_shard"},
                       {4, 1, 2, true}, {4, 1, 1, false}, {2, 1, 2, false, "shard_grad_op"}};

/// Four query heads and two KV heads, which four tp ranks hold twice.
Plan plan_of(const Grid& grid, bool trains_vision = true) {
  Options options;
  options.precision.preset = "fp64";
  options.encoders["vision"].train = trains_vision;
  options.meshes["llm"].tp = grid.llm_tp;
  options.meshes["llm"].cp = grid.llm_cp;
  options.meshes["vision"].tp = grid.vision_tp;
  for (ModuleMeshOptions* mesh : {&options.meshes["llm"], &options.meshes["vision"]}) {
    mesh->strategy = grid.strategy;
    if (mesh->tp > 1) mesh->sequence_parallel = AutoOption::of(grid.sequence_parallel);
  }
  return make_plan(options, tiny_llava_config({.vocabulary = 41}), testing::world().size());
}

/// A gradient that says whose it is and where it lies.
double own_value(int rank, int64_t flat) {
  return static_cast<double>((rank + 1) * 4096 + flat % 4096);
}

at::Tensor own_gradient(const ShardedBuffer& buffer, int rank) {
  const at::Tensor values = at::empty_like(buffer.gradient());
  for (int64_t i = 0; i < values.numel(); ++i)
    values.data_ptr<double>()[i] = own_value(rank, buffer.range().begin + i);
  return values;
}

/// Returns the expected gradient of a rank afterwards.
at::Tensor summed_gradient(const Plan& plan, const ShardedBuffer& buffer, int rank) {
  const at::Tensor values = own_gradient(buffer, rank);
  const std::string& module = buffer.layout().module;
  const bool sequence_parallel = plan.token_shardings.at(module).sequence_parallel;
  for (const FlatPart& part : parts_in_range(buffer.layout(), buffer.range())) {
    const ParamShard& cut = plan.cuts[part.param];
    for (int64_t i = 0; i < part.elements; ++i) {
      double sum = 0;
      for (int holder : piece_holders(plan.mesh, rank, module, cut.holders))
        sum += own_value(holder, part.flat_begin + i);
      // Whole on each: all of them have all of it.
      const bool repeats = cut.dim < 0 && !sequence_parallel;
      values.data_ptr<double>()[part.flat_begin - buffer.range().begin + i] =
          repeats ? sum / cut.holders : sum;
    }
  }
  return values;
}

void fill(Engine& engine, int rank) {
  for (const auto& buffer : engine.buffers())
    if (buffer->trainable()) buffer->gradient().copy_(own_gradient(*buffer, rank));
}

/// An engine of the whole world with its holder sums.
struct Running {
  Plan plan;
  Record record;
  Mesh mesh;
  Engine engine;
  ReplicatedGradSync sums;

  explicit Running(const Plan& of)
      : plan(of),
        mesh(testing::world().communicator(), plan.mesh, recording(record)),
        engine(plan, mesh, at::kCPU),
        sums(plan, mesh, engine.buffers(), at::kCPU) {
    record.clear();
  }
};

TEST(ReplicatedGradSync, SumOverHoldersWhatTheyHoldInCommon) {
  for (const Grid& grid : kGrids) {
    Running running(plan_of(grid));
    const int rank = running.mesh.rank();
    fill(running.engine, rank);

    running.sums.run(std::vector<bool>(running.plan.buffers.size(), true));

    for (const auto& buffer : running.engine.buffers()) {
      if (!buffer->trainable()) continue;
      EXPECT_TRUE(
          at::allclose(buffer->gradient(), summed_gradient(running.plan, *buffer, rank), 1e-15, 0))
          << buffer->layout().name << " tp " << grid.llm_tp << ", " << grid.vision_tp;
    }
  }
}

TEST(ReplicatedGradSync, LeaveWhatHasNoGradientInTheStep) {
  Running running(plan_of({4, 1, 2, true}));
  const int rank = running.mesh.rank();
  fill(running.engine, rank);
  std::vector<bool> changed;
  for (size_t g = 0; g < running.plan.buffers.size(); ++g) changed.push_back(g % 2 == 0);

  running.sums.run(changed);

  for (size_t g = 0; g < running.plan.buffers.size(); ++g) {
    const ShardedBuffer& buffer = *running.engine.buffers()[g];
    if (!buffer.trainable()) continue;
    EXPECT_TRUE(at::allclose(buffer.gradient(), changed[g]
                                                    ? summed_gradient(running.plan, buffer, rank)
                                                    : own_gradient(buffer, rank)))
        << buffer.layout().name;
  }
  running.record.clear();
  running.sums.run(std::vector<bool>(running.plan.buffers.size(), false));
  EXPECT_TRUE(running.record.empty());
}

/// Elements of this rank's shards of a module that `holders` ranks hold.
int64_t elements_held_by(Running& running, const std::string& module, int holders) {
  int64_t elements = 0;
  for (const auto& buffer : running.engine.buffers())
    for (const FlatPart& part : parts_in_range(buffer->layout(), buffer->range()))
      if (buffer->trainable() && buffer->layout().module == module &&
          running.plan.cuts[part.param].holders == holders)
        elements += part.elements;
  return elements;
}

TEST(ReplicatedGradSync, AskEachGroupOfHoldersOnce) {
  for (bool trains_vision : {true, false}) {
    Running running(plan_of({4, 1, 2, true}, trains_vision));
    std::multiset<std::pair<int, int64_t>> expected, found;  // ranks, elements
    expected.emplace(4, elements_held_by(running, "llm", 4));
    expected.emplace(2, elements_held_by(running, "llm", 2));
    const int64_t of_vision = elements_held_by(running, "vision", 2);
    if (of_vision > 0) expected.emplace(2, of_vision);

    running.sums.run(std::vector<bool>(running.plan.buffers.size(), true));

    for (const RecordedCall& call : running.record) {
      EXPECT_EQ(call.call, "all_reduce");
      EXPECT_EQ(call.dtype, DType::Float64);
      found.emplace(call.ranks, call.elements);
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(ReplicatedGradSync, AskNothingWithoutTensorParallelism) {
  Running running(plan_of({1, 1, 1, true}));

  running.sums.run(std::vector<bool>(running.plan.buffers.size(), true));

  EXPECT_TRUE(running.record.empty());
}

}  // namespace
}  // namespace zea::testing::test_replicated_grad_sync
