// SPDX-License-Identifier: Apache-2.0
// Parts of a run other than its steps, on a device that is not the host: checkpoints that another
// layout and the host resume, bf16, decoding token by token, and a refused start.
#include <gtest/gtest.h>

#include "device/device.hpp"
#include "device/torch_device.hpp"
#include "support/bf16_bounds.hpp"
#include "support/grid_scenarios.hpp"
#include "support/made_up_models.hpp"
#include "support/mpi_main.hpp"
#include "support/shared_directory.hpp"
#include "support/stopped_run.hpp"

namespace zea::testing::test_device_runs {
namespace {

const Grid kGrid{{2, 1}, "full_shard", 2};

const GridScenario& scenario() {
  return grid_scenarios().front();
}

TinyRunOptions on_device(TinyRunOptions options) {
  options.device = stand_in_device();
  return options;
}

/// Options for the scenario's model.
TinyRunOptions stopped_on(const Grid& grid) {
  TinyRunOptions options = stopped_run_options(scenario().config(kGrid));
  options.deck.mesh = run_of(scenario(), grid).deck.mesh;
  options.deck.meshes = run_of(scenario(), grid).deck.meshes;
  return options;
}

TEST(DeviceRuns, CheckpointsAreThoseOfTheHost) {
  const Communicator all = world().communicator();
  const SharedDirectory shared(all);
  const MemoryDataset dataset = dataset_of(scenario(), kGrid);
  const TinyRunOptions here = stopped_on(kGrid);
  const TinyRunOptions other = stopped_on({{1, 2}, "shard_grad_op", 2});
  const StoppedRun written =
      run_through(all, make_stand_in_collectives, dataset, on_device(here), shared / "device");
  shared.barrier();
  expect_resumes(all, make_stand_in_collectives, dataset, on_device(here), written);
  expect_resumes(all, make_stand_in_collectives, dataset, on_device(other), written);
  expect_resumes(all, make_mpi_collectives, dataset, here, written);
}

void expect_bf16_within_its_error(const GridScenario& scenario, const Grid& grid = kGrid,
                                  int64_t ep = 1) {
  SCOPED_TRACE(std::string(scenario.name) + ", " + grid.name());
  const Communicator all = world().communicator(), alone = all.split(all.rank(), "alone");
  TinyRunOptions options = run_of(scenario, grid);
  options.deck.precision.preset = "bf16";
  options.deck.meshes["llm"].ep = ep;
  TinyRunOptions one = run_of(scenario, one_rank_like(grid));
  const MemoryDataset dataset = dataset_of(scenario, grid);
  const ComparedResult exact = run_compared(alone, make_mpi_collectives, dataset, one);
  one.deck.precision.preset = "bf16";
  const ComparedResult host = run_compared(alone, make_mpi_collectives, dataset, one);
  const ComparedResult got =
      run_compared(all, make_stand_in_collectives, dataset, on_device(options));
  expect_near_in_bf16(got.losses, host.losses, exact.losses);
  expect_gradients_near_in_bf16(got.first_moment, host.first_moment, exact.first_moment);
}

/// Also with heads that attend by the bounds of samples, through windows.
TEST(DeviceRuns, Bf16IsWithinItsOwnError) {
  expect_bf16_within_its_error(scenario());
  expect_bf16_within_its_error(
      {.name = "windows", .model = {.head_dim = 8}, .remake = see_windows});
}

/// Every token goes to every expert, since rounded scores would choose others. The library
/// multiplies the rows of all experts of a rank at once.
TEST(DeviceRuns, ExpertsInBf16AreWithinItsOwnError) {
  const GridScenario experts{
      .name = "experts", .model = {.head_dim = 8}, .other_config = [](const TinyLlava& o) {
        return with_experts(tiny_llava_config(o), 4, 4);
      }};
  for (const int64_t ep : {1, 2}) {
    device().take_launches();
    expect_bf16_within_its_error(experts, {{1, 1}, "full_shard", 4}, ep);
    EXPECT_GT(device().take_launches()["_grouped_mm"], 0) << "ep " << ep;
  }
}

/// Attention by slices, whose results are assembled from parts in another order.
TEST(DeviceRuns, SlicesInBf16AreWithinItsOwnError) {
  const GridScenario gemma3{
      .name = "Gemma 3", .model = {.tied = true, .image_size = 24, .siglip = true, .gemma3 = true}};
  const GridScenario heads_of_8{.name = "heads of 8", .model = {.head_dim = 8}};
  const GridScenario windows{.name = "windows", .model = {.head_dim = 8}, .remake = see_windows};
  for (const GridScenario& tried : {scenario(), gemma3, heads_of_8, windows})
    for (const char* mode : {"allgather_kv", "ring"})
      expect_bf16_within_its_error(tried, {{1, 2, mode}, "full_shard", 2});
  expect_bf16_within_its_error(gemma3, {{1, 1}, "full_shard", 4});
}

/// Owners of keys sum the gradients that other ranks send: an NCCL reduction would round them at
/// every hop.
TEST(DeviceRuns, NcclDoesNotReduceGradientsOfKeys) {
  const GridScenario text{.name = "text", .model = {.head_dim = 8}, .images = {0}};
  device().take_launches();
  expect_bf16_within_its_error(text, {{1, 4, "allgather_kv"}, "no_shard", 1});
  const Launches launches = device().take_launches();
  EXPECT_TRUE(launches.contains("ncclSend"));
  for (const char* sum : {"ncclReduceScatter", "ncclReduce"}) EXPECT_FALSE(launches.contains(sum));
}

/// Ranks that exchange tokens for heads have whole rows, of which a kernel takes all samples at
/// once.
TEST(DeviceRuns, UlyssesAttendsByTheBoundsOfSamples) {
  const GridScenario text{.name = "ulysses", .model = {.head_dim = 8}, .images = {0}};
  device().take_launches();
  expect_bf16_within_its_error(text, {{1, 2, "ulysses"}, "full_shard", 2});
  Launches launches = device().take_launches();
  EXPECT_GT(launches["aten::_flash_attention_forward"], 0);
  EXPECT_GT(launches["aten::_flash_attention_backward"], 0);
  EXPECT_EQ(launches["attention"], 0);
}

/// Also where every rank encodes alone, whose groups of one have the host's collectives.
TEST(DeviceRuns, FeaturesThatAreKeptAreThoseOfTheHost) {
  const Communicator all = world().communicator();
  for (const Grid& grid : {Grid{{1, 1}, "full_shard", 4}, kGrid}) {
    SCOPED_TRACE(grid.name());
    TinyRunOptions options = run_of(scenario(), grid);
    options.deck.encoders["vision"].train = false;
    const MemoryDataset dataset = dataset_of(scenario(), grid);
    const ComparedResult expected = run_compared(all, make_mpi_collectives, dataset, options);
    const SharedDirectory folder(all);
    options.deck.data.cache_features = folder.path();
    for (int times = 0; times < 2; ++times)  // computed, then read
      expect_equal(run_compared(all, make_stand_in_collectives, dataset, on_device(options)),
                   expected);
  }
}

TEST(DeviceRuns, SaysWhatTheHostSays) {
  const Communicator all = world().communicator(), alone = all.split(all.rank(), "alone");
  const Grid one = one_rank_like(kGrid);
  const std::string got =
      predictions_on(all, make_stand_in_collectives, dataset_of(scenario(), kGrid),
                     on_device(run_of(scenario(), kGrid)), kDrawn);
  const std::string expected = predictions_on(
      alone, make_mpi_collectives, dataset_of(scenario(), one), run_of(scenario(), one), kDrawn);
  if (all.rank() != 0) return;
  EXPECT_EQ(got, expected);
}

/// Returns the error of making a run of the layout; empty: none.
std::string refusal_of(const Grid& grid) {
  const MemoryDataset dataset = dataset_of(scenario(), grid);
  const TinyRunOptions options = on_device(run_of(scenario(), grid));
  try {
    const TinyRun run(world().communicator(), make_stand_in_collectives, dataset, options);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "";
}

TEST(DeviceRuns, AStartAsksForVersionsThatOrderCommunicators) {
  const Grid one_group{{1, 1}, "no_shard", 4};
  const Versions usual = device().versions();
  EXPECT_EQ(refusal_of(kGrid), "");
  device().versions().nccl = 22500;
  const std::string refusal = refusal_of(kGrid), none = refusal_of(one_group);
  device().versions() = usual;
  EXPECT_NE(refusal.find("NCCL 2.25 does not order"), std::string::npos) << refusal;
  EXPECT_EQ(none, "");
}

}  // namespace
}  // namespace zea::testing::test_device_runs
