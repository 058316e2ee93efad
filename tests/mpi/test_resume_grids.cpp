// SPDX-License-Identifier: Apache-2.0
// Checkpoints cross all grids of the table: every grid reads the checkpoint of one layout of 8
// ranks, and one rank reads that of any grid. Every fifth is tried; ZEA_RESUME_STRIDE=1: all. Grids
// of few ranks are tried concurrently.
#include <gtest/gtest.h>

#include "support/compared_run.hpp"
#include "support/grid_table.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/stopped_run.hpp"

namespace zea::testing::test_resume_grids {
namespace {

/// A vocabulary that tp pads, embeddings that are the head, too, and KV heads that many ranks hold.
std::string config_for(const Grid& grid) {
  return tiny_llava_config(
      model_for(grid, {.tied = true, .kv_heads = 1, .vocabulary = 41, .audio = true}));
}

TinyRunOptions options_of(const Grid& grid) {
  TinyRunOptions run = stopped_run_options(config_for(grid));
  apply(grid, run.deck);
  run.deck.encoders["audio"].lora = {
      .targets = {"q_proj", "out_proj", "linear_*"}, .rank = 3, .dropout = 0.2};
  return run;
}

MemoryDataset dataset_for(const Grid& grid) {
  return make_tiny_dataset(make_model_spec(config_for(grid)), 23, {1, 0, 2}, 5, {1, 0});
}

// One for each number of heads that grids want: the model is then theirs.
const Grid kWriters[] = {
    {{4, 2, "ring", "zigzag"}, "hybrid_shard", 1, {{2, 4, "ring", "makespan_min"}}, "full_shard"},
    {{2, 1}, "hybrid_shard", 4, {{1, 2, "allgather_kv", "makespan_min"}}, "hybrid_shard", 6},
    {{1, 8, "ulysses", "uniform"}, "full_shard", 1, {{4, 1}}, "full_shard", 8},
};

/// Returns every nth grid, if it has that number of heads (or any).
std::vector<Trial> trials_of(std::optional<int> heads, size_t stride) {
  std::vector<Trial> trials;
  for (size_t g = 0; g < grids().size(); g += stride)
    if (const Grid& grid = grids()[g]; !heads || grid.heads == *heads)
      trials.push_back(make_trial(grid.name(), g, grid.ranks(), g % 2 == 0));
  return trials;
}

class ResumeGrids : public ::testing::Test {
 protected:
  const SharedDirectory shared_{world().communicator()};
};

TEST_F(ResumeGrids, EveryGridGoesOnWhereAnotherStopped) {
  size_t read = 0;
  for (const Grid& writer : kWriters) {
    ASSERT_EQ(writer.ranks(), world().size());
    const MemoryDataset dataset = dataset_for(writer);
    const StoppedRun expected = run_through(world().communicator(), make_mpi_collectives, dataset,
                                            options_of(writer), shared_ / writer.name());
    const std::vector<Trial> trials = trials_of(writer.heads, resume_stride());
    sweep(trials, [&](const Communicator& part, const Trial& trial) {
      expect_resumes(part, trial.make, dataset, options_of(grids()[trial.layout]), expected);
    });
    read += trials.size();
  }
  EXPECT_EQ(read, trials_of({}, resume_stride()).size()) << "numbers of heads without a writer";
}

TEST_F(ResumeGrids, OneRankGoesOnWhereAnyGridStopped) {
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  sweep(trials_of({}, resume_stride()), [&](const Communicator& part, const Trial& trial) {
    const Grid& grid = grids()[trial.layout];
    const MemoryDataset dataset = dataset_for(grid);
    const StoppedRun expected = run_through(part, trial.make, dataset, options_of(grid),
                                            shared_ / std::to_string(trial.layout));
    if (part.rank() == 0)
      expect_resumes(alone, make_mpi_collectives, dataset, options_of({.heads = grid.heads}),
                     expected);
  });
}

}  // namespace
}  // namespace zea::testing::test_resume_grids
