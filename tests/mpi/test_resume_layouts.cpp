// SPDX-License-Identifier: Apache-2.0
// A run that is stopped on one layout goes on at any other: after loading, every weight and moment
// has the same bits, and training continues in fp64 within 1e-10 of never having stopped.
#include <gtest/gtest.h>

#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/tiny_llava.hpp"
#include "support/tiny_run.hpp"
#include "zea/checkpoint/agree.hpp"
#include "zea/checkpoint/checkpoint_reader.hpp"
#include "zea/checkpoint/checkpoint_writer.hpp"

namespace zea::testing {
namespace {

constexpr double kTolerance = 1e-10;
constexpr int64_t kStepsBefore = 3, kStepsAfter = 3;

/// Degrees of one module.
struct Degrees {
  int tp = 1, cp = 1;
  bool sequence_parallel = true;  ///< with tp > 1
  int pp = 1, virtual_stages = 1;
  int dp_module = 0;  ///< of an encoder on ranks of its own
};

struct Layout {
  int ranks;
  const char* strategy;
  int dp_replicate = 1;
  int64_t wrap_units = 1;
  Degrees llm = {}, vision = {};
  const char* placement = "shared";
  const char* schedule = "1f1b";
};

const Layout kWriters[] = {
    {4, "full_shard"}, {2, "no_shard"}, {6, "hybrid_shard", 3}, {3, "shard_grad_op", 1, 2}};

// Vocabularies that tp pads, KV heads that several tp ranks hold, and vision encoders that are cut
// in another way, over what the language model's ranks leave.
const Layout kGridWriters[] = {
    {4, "full_shard", 1, 1, {.tp = 2}, {}},
    {8, "hybrid_shard", 2, 2, {.tp = 2, .cp = 2}, {.tp = 2}},
    {4, "no_shard", 1, 1, {.tp = 4, .sequence_parallel = false}, {.tp = 2}},
};

// Modules on ranks of their own, and tied embeddings that two stages hold.
const Layout kPipelines[] = {
    {8, "full_shard", 1, 1, {.tp = 2, .pp = 2}, {.tp = 2, .pp = 2}, "disjoint", "1f1b"},
    {6, "full_shard", 1, 1, {.pp = 2}, {.dp_module = 1}, "disjoint", "zero_bubble"},
    {2, "no_shard", 1, 1, {.pp = 2, .virtual_stages = 2}, {}, "shared", "interleaved_1f1b"},
    {6, "hybrid_shard", 3, 1, {}, {.dp_module = 1}, "colocated", "gpipe"},
};

std::vector<Layout> readers() {
  std::vector<Layout> all;
  for (int ranks : {1, 2, 3, 6, 8}) {
    for (const char* strategy : {"full_shard", "shard_grad_op", "no_shard"})
      all.push_back({ranks, strategy});
    if (ranks % 2 == 0)
      for (const char* strategy : {"hybrid_shard", "hybrid_shard_zero2"})
        all.push_back({ranks, strategy, 2});
  }
  all.push_back({3, "full_shard", 1, 0});
  return all;
}

std::vector<Layout> grid_readers() {
  return {{1, "full_shard"},
          {6, "hybrid_shard", 2},
          {4, "no_shard", 1, 1, {.tp = 2}, {.tp = 2}},
          {8, "full_shard", 1, 1, {.tp = 4, .cp = 2}, {.tp = 1, .cp = 2}},
          {6, "shard_grad_op", 1, 0, {.tp = 2, .cp = 3}, {.tp = 2, .sequence_parallel = false}},
          {3, "no_shard", 1, 1, {.cp = 3}, {.cp = 3}}};
}

std::string name_of(const Layout& layout) {
  const auto degrees = [](const Degrees& of) {
    return " tp" + std::to_string(of.tp) + " cp" + std::to_string(of.cp) +
           (of.sequence_parallel ? "" : " whole sequences") +
           (of.pp > 1 ? " pp" + std::to_string(of.pp) : "");
  };
  return std::to_string(layout.ranks) + " ranks " + layout.strategy + degrees(layout.llm) +
         " vision" + degrees(layout.vision) + ", " + layout.placement + ", " + layout.schedule;
}

TinyRunOptions options_of(const Layout& layout) {
  TinyRunOptions run;
  run.config_json = tiny_llava_config({.tied = true, .kv_heads = 1, .vocabulary = 41});
  run.deck.precision.preset = "fp64";
  run.deck.mesh.dp_replicate = layout.dp_replicate;
  run.deck.mesh.placement = layout.placement;
  run.deck.mesh.schedule = layout.schedule;
  for (ModuleMeshOptions* mesh : {&run.deck.mesh_vision, &run.deck.mesh_llm}) {
    const Degrees& degrees = mesh == &run.deck.mesh_llm ? layout.llm : layout.vision;
    mesh->strategy = layout.strategy;
    mesh->wrap_units = layout.wrap_units;
    mesh->tp = degrees.tp;
    mesh->cp = degrees.cp;
    mesh->pp = degrees.pp;
    mesh->virtual_stages = degrees.virtual_stages;
    mesh->dp_module = degrees.dp_module;
    if (degrees.tp > 1) mesh->sequence_parallel = AutoOption::of(degrees.sequence_parallel);
    mesh->cp_block = degrees.cp > 1 ? 4 : mesh->cp_block;
  }
  run.deck.data.row_tokens = 64;
  run.deck.optim.lr = 1e-2;
  run.deck.optim.warmup_steps = 2;
  run.deck.optim.weight_decay = 0.1;
  run.deck.optim.clip_norm = 0.5;
  run.deck.schedule = {.steps = kStepsBefore + kStepsAfter, .global_batch = 7};
  return run;
}

/// What no parameter has in a shard, the rows that fill up a vocabulary among it, stays zero.
void expect_zero_padding(TinyRun& run) {
  const Plan& plan = run.engine().plan();
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    if (!plan.holds(run.engine().world_rank(), static_cast<int>(g))) continue;
    const ShardedGroup& group = *run.engine().groups()[g];
    if (!group.trainable()) continue;
    const at::Tensor padding = at::ones_like(group.master());
    const int tp_rank = plan.tp_rank(run.engine().world_rank(), static_cast<int>(g));
    for (const FlatPart& part : parts_in_range(plan.groups[g], group.range()))
      for (const PieceBox& box :
           boxes_of_piece(plan.model.params[part.param], plan.cuts[part.param], tp_rank,
                          part.param_begin, part.param_begin + part.elements))
        padding
            .narrow(0, part.flat_begin - group.range().begin + box.begin - part.param_begin,
                    box.extent.elements())
            .zero_();
    for (const at::Tensor& values : {group.master(), group.exp_avg(), group.exp_avg_sq()})
      EXPECT_EQ((values * padding).abs().max().item<double>(), 0) << group.layout().name;
  }
}

struct Expected {
  Tensors saved_weights, saved_exp_avg, saved_exp_avg_sq, final_weights;
  std::vector<double> losses_after;
};

Expected run_through(const Dataset& dataset, const Layout& layout, const std::string& directory) {
  const Communicator ranks = testing::first_ranks(layout.ranks);
  Expected expected;
  if (ranks.size() == 0) return expected;
  const TinyRunOptions options = options_of(layout);
  TinyRun run(ranks, make_mpi_collectives, dataset, options);
  TinyResult before, after;
  run.train(kStepsBefore, before);
  write_checkpoint(
      run.engine(), run.control(),
      {.directory = directory, .run_id = "run-1", .position = run.position(), .deck = "[run]\n"});
  expected.saved_weights = run.weights();
  expected.saved_exp_avg = run.moments(kStateExpAvg);
  expected.saved_exp_avg_sq = run.moments(kStateExpAvgSq);
  run.train(kStepsAfter, after);
  expected.losses_after = after.losses;
  expected.final_weights = run.weights();
  return expected;
}

/// What the ranks of the writer know; its rank 0 is in every layout, and compares.
void expect_resumes(const Dataset& dataset, const Layout& layout, const std::string& checkpoint,
                    const Expected& expected) {
  const Communicator ranks = testing::first_ranks(layout.ranks);
  if (ranks.size() == 0) return;
  const TinyRunOptions options = options_of(layout);
  TinyRun run(ranks, make_mpi_collectives, dataset, options);
  run.position() = read_checkpoint(run.engine(), run.control(), *open_state(checkpoint));
  const Tensors weights = run.weights(), exp_avg = run.moments(kStateExpAvg),
                exp_avg_sq = run.moments(kStateExpAvgSq);
  TinyResult after;
  run.train(kStepsAfter, after);
  const Tensors final_weights = run.weights();
  expect_zero_padding(run);
  if (ranks.rank() != 0) return;
  EXPECT_EQ(max_difference(weights, expected.saved_weights), 0);
  EXPECT_EQ(max_difference(exp_avg, expected.saved_exp_avg), 0);
  EXPECT_EQ(max_difference(exp_avg_sq, expected.saved_exp_avg_sq), 0);
  EXPECT_LE(max_difference(final_weights, expected.final_weights), kTolerance);
  ASSERT_EQ(after.losses.size(), expected.losses_after.size());
  for (size_t step = 0; step < after.losses.size(); ++step)
    EXPECT_NEAR(after.losses[step], expected.losses_after[step], kTolerance);
}

class ResumeLayouts : public ::testing::Test {
 protected:
  void expect_all_resume(const Layout& writer, const std::vector<Layout>& readers) {
    const std::string directory = shared_ / std::to_string(written_++);
    const Expected expected = run_through(dataset_, writer, directory);
    shared_.barrier();
    for (const Layout& reader : readers) {
      SCOPED_TRACE(name_of(writer) + " read by " + name_of(reader));
      expect_resumes(dataset_, reader, directory + "/step-00000003", expected);
    }
  }

 private:
  const SharedDirectory shared_{testing::world().communicator()};
  const MemoryDataset dataset_ =
      make_tiny_dataset(make_model_spec(options_of(kWriters[0]).config_json), 23, {1, 0, 2}, 5);
  int written_ = 0;
};

TEST_F(ResumeLayouts, AnyLayoutGoesOnWhereAnyOtherStopped) {
  for (const Layout& writer : kWriters) expect_all_resume(writer, readers());
}

TEST_F(ResumeLayouts, GridsGoOnWhereOtherGridsStopped) {
  expect_all_resume(kWriters[0], grid_readers());
  for (const Layout& writer : kGridWriters) expect_all_resume(writer, grid_readers());
}

TEST_F(ResumeLayouts, PipelinesGoOnWhereOthersStopped) {
  const std::vector<Layout> pipelines(std::begin(kPipelines), std::end(kPipelines));
  std::vector<Layout> readers = pipelines;
  readers.push_back({2, "full_shard"});
  readers.push_back({1, "no_shard"});
  for (const Layout& writer : pipelines) expect_all_resume(writer, readers);
  expect_all_resume({2, "full_shard"}, pipelines);
}

}  // namespace
}  // namespace zea::testing
