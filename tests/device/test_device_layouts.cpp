// SPDX-License-Identifier: Apache-2.0
// The engine on a device that is not the host, over NCCL's functions: grids and pipelines of the
// tables give in fp64 the results of one rank on the host, and the stand-in finds no fault. Some of
// them; ZEA_DEVICE_STRIDE = 1 tries all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "device/device.hpp"
#include "device/kernels.hpp"
#include "device/torch_device.hpp"
#include "layout/token_layout.hpp"
#include "parallel/tp_row_comm.hpp"
#include "support/family_layouts.hpp"
#include "support/grid_scenarios.hpp"
#include "support/mpi_main.hpp"
#include "support/sampled_layouts.hpp"

namespace zea::testing::test_device_layouts {
namespace {

size_t stride(size_t usual) {
  const char* asked = std::getenv("ZEA_DEVICE_STRIDE");
  return asked != nullptr ? std::strtoul(asked, nullptr, 10) : usual;
}

Launches calls_of_nccl(Launches launches) {
  std::erase_if(launches, [](const auto& one) { return !one.first.starts_with("nccl"); });
  return launches;
}

void leave_as_it_is(TinyRunOptions&) {}

/// Keeps the state of all modules in host memory, which a deck refuses for the stand-in device.
void offload(TinyRunOptions& options, bool pins) {
  options.adjust = [pins](Plan& plan) {
    for (Sharding& sharding : plan.shardings) {
      sharding.offloads = true;
      sharding.pins_memory = pins;
    }
    plan.slots = make_slots(plan.schedule_parts(), plan.precisions);
  };
}

/// Expects the results of every layout to equal those of one rank on the host.
void expect_same(const std::vector<SampledLayout>& layouts,
                 const std::function<void(TinyRunOptions&)>& prepare = leave_as_it_is) {
  sweep_on_device(
      layouts, stand_in_device(), make_stand_in_collectives, prepare,
      [](const Communicator& alone, const SampledLayout& layout, const ComparedResult& got) {
        const SampledLayout::Run one = layout.one_rank();
        expect_equal(got, run_compared(alone, make_mpi_collectives, one.dataset, one.options));
      });
}

TEST(DeviceLayouts, GridsEqualOneRankOfTheHost) {
  expect_same(sampled_grids(stride(12)));
}

TEST(DeviceLayouts, PipelinesEqualOneRankOfTheHost) {
  expect_same(sampled_pipelines(stride(12)));
}

/// Keys of earlier stages and per-layer inputs, in four stages of 1F1B and three of GPipe.
TEST(DeviceLayouts, OutputsThatSkipStagesEqualOneRankOfTheHost) {
  const PipelineLayout layout = *std::ranges::find_if(pipelines(), [](const PipelineLayout& one) {
    return one.model == PipelineModel::Gemma4 && one.llm.pp == 4;
  });
  PipelineLayout of_gpipe = layout;
  of_gpipe.schedule = "gpipe";
  of_gpipe.llm.pp = 3;
  expect_same({pipeline_layout(layout), pipeline_layout(of_gpipe)});
}

const GridScenario& scenario_named(std::string_view name) {
  return *std::ranges::find(grid_scenarios(), name, &GridScenario::name);
}

/// Chunks of rows that are sent while others are multiplied, of even and uneven rows.
TEST(DeviceLayouts, RowsInChunksEqualOneRankOfTheHost) {
  const GridScenario& scenario = grid_scenarios().front();
  GridModule rows{.tp = 2, .chunks = 4}, whole{.tp = 2, .sequence_parallel = false, .chunks = 2};
  GridModule with_cp{.tp = 4, .cp = 2, .mode = "ring", .chunks = 3};
  expect_same({grid_layout(scenario, {rows, "full_shard"}),
               grid_layout(scenario, {whole, "no_shard"}),
               grid_layout(scenario, {with_cp, "full_shard"})});
}

/// Scans of all chunks at once, alone and where cp ranks exchange tokens for heads, or pass states.
TEST(DeviceLayouts, GatedDeltaRulesEqualOneRankOfTheHost) {
  const GridScenario& heads = scenario_named("gated delta rules beside attention");
  const GridScenario& states = scenario_named("gated delta rules that pass states");
  expect_same({grid_layout(heads, {{1, 1}, "full_shard", 1}),
               grid_layout(heads, {{2, 2, "ring"}, "full_shard", 2}),
               grid_layout(states, {{2, 2, "ring"}, "full_shard", 2}),
               grid_layout(states, {{1, 4, "ulysses", "uniform"}, "no_shard"})});
}

TEST(DeviceLayouts, SinksAndLatentsEqualOneRankOfTheHost) {
  for (const char* name :
       {"gpt-oss, attention sinks and biased experts", "DeepSeek-V3, latent attention"})
    expect_same({grid_layout(scenario_named(name), {{1, 1}, "full_shard", 1}),
                 grid_layout(scenario_named(name), {{2, 2, "ring"}, "full_shard", 2})});
}

/// How many rows ranks exchange is known only once the host has waited for the counts.
TEST(DeviceLayouts, TokensExchangedForExpertsEqualOneRankOfTheHost) {
  const GridScenario& scenario = scenario_named("Qwen3-VL-MoE, stacked experts, frozen tower");
  const auto exchange = [](TinyRunOptions& options) {
    options.deck.meshes["llm"].ep = 2;
    options.deck.meshes["llm"].ep_dispatch = "alltoall";
  };
  expect_same({grid_layout(scenario, {{1, 1}, "full_shard", 2}),
               grid_layout(scenario, {{2, 2, "ring"}, "no_shard"})},
              exchange);
  expect_same({grid_layout(scenario, {{1, 1}, "full_shard", 2}),
               grid_layout(scenario, {{2, 2, "ring"}, "full_shard", 2}),
               grid_layout(scenario, {{1, 2}, "hybrid_shard", 2})},
              [&](TinyRunOptions& options) {
                exchange(options);
                offload(options, true);
              });
  expect_same({grid_layout(scenario, {{2, 1}, "full_shard", 2}),
               grid_layout(scenario, {{1, 2}, "no_shard", 2})},
              [&](TinyRunOptions& options) {
                options.deck.meshes["llm"].ep = 2;
                options.deck.meshes["llm"].ep_dispatch = "allgather";
                offload(options, true);
              });
}

/// Audio of Gemma 4, encoded by the ranks of the language model, and frozen on separate ranks.
TEST(DeviceLayouts, ConformersEqualOneRankOfTheHost) {
  std::vector<SampledLayout> layouts;
  for (const FamilyLayout& layout : family_layouts()) {
    if (layout.model->name != "gemma4 with audio") continue;
    const auto run = [&layout](const TinyRunOptions& options) {
      return SampledLayout::Run{options, layout.dataset()};
    };
    layouts.push_back({layout.name(), kFamilyRanks, [=, &layout] { return run(layout.run()); },
                       [=, &layout] { return run(layout.run_on_one_rank()); }});
  }
  ASSERT_EQ(layouts.size(), 2U);
  expect_same(layouts);
}

/// Five rows of three ranks: two, two and one.
TEST(DeviceLayouts, SlicesOfRowsTravelInOneCall) {
  const Communicator part = first_ranks(3);
  if (part.size() == 0) return;
  const std::unique_ptr<Collectives> tp = make_stand_in_collectives(part);
  const std::vector<int64_t> slices = slice_rows(5, 3);
  detail::TpBuffers buffers(*tp);
  const detail::TpRowComm rows(buffers, slices);
  const at::Tensor all = at::arange(5 * 4, at::kDouble).view({5, 4});
  const at::Tensor own = all.split_with_sizes(slices)[static_cast<size_t>(part.rank())];
  const at::Tensor there = own.to(stand_in_device());
  device().take_launches();
  const at::Tensor gathered = rows.gather(there).take();
  EXPECT_EQ(calls_of_nccl(device().take_launches()), (Launches{{"ncclAllGather", 1}}));
  EXPECT_TRUE(gathered.cpu().equal(all));
  const at::Tensor partial = rows.partial(5, 4, there.options());
  partial.copy_(all);
  device().take_launches();
  const at::Tensor sum = rows.sum(partial).take();
  EXPECT_EQ(calls_of_nccl(device().take_launches()), (Launches{{"ncclReduceScatter", 1}}));
  EXPECT_TRUE(sum.cpu().equal(3 * own));
  EXPECT_FALSE(sum.is_view());
}

/// Sharded state on the host, copied to the device for each use: over ranks, replicas and alone;
/// gradients that come to the host once a step or for every microbatch.
TEST(DeviceLayouts, OffloadedStateEqualsOneRankOfTheHost) {
  const struct {
    Grid grid;
    bool pins, accumulates;
  } tried[] = {{{{2, 1}, "full_shard", 2}, false, false},
               {{{2, 1}, "full_shard", 2}, true, true},
               {{{1, 2}, "hybrid_shard", 2}, true, false},
               {{{1, 1}, "full_shard", 1}, true, true},
               {{{1, 1}, "full_shard", 1}, true, false}};
  for (const auto& [grid, pins, accumulates] : tried) {
    const auto prepare = [pins = pins, accumulates = accumulates](TinyRunOptions& options) {
      for (const char* module : {"vision", "llm"})
        options.deck.meshes[module].sync_grad_accum = AutoOption::of(!accumulates);
      offload(options, pins);
    };
    expect_same({grid_layout(grid_scenarios().front(), grid)}, prepare);
  }
}

/// With kernels of zea's the device judges its steps: on every place of a pipeline, too.
TEST(DeviceLayouts, StepsThatTheDeviceJudgesAreThoseOfTheHost) {
  have_kernels(true);
  expect_same(sampled_pipelines(stride(40)));
  expect_same(sampled_grids(stride(60)));
  have_kernels(false);
}

/// Whoever runs communicators one after the other, in the order of the program, gets to the end: on
/// all ranks it is the same order.
TEST(DeviceLayouts, CommunicatorsMayTakeTurns) {
  const GridScenario& scenario = grid_scenarios().front();
  device().take_turns(true);
  expect_same({grid_layout(scenario, {{2, 2, "ring"}, "full_shard", 2}),
               grid_layout(scenario, {{1, 4}, "hybrid_shard", 2})});
  device().take_turns(false);
}

/// Collectives whose results are never waited for.
class Forgetful : public WrappedCollectives {
 public:
  explicit Forgetful(std::unique_ptr<Collectives> inner)
      : WrappedCollectives(*inner), owned_(std::move(inner)) {}

  Pending start(const CollectiveCall& call) override {
    forgotten_.push_back(inner_.start(call));
    return Pending();
  }

 private:
  std::unique_ptr<Collectives> owned_;
  std::vector<Pending> forgotten_;
};

TEST(DeviceLayoutsTeeth, ResultsThatAreNotWaitedForAreSeen) {
  const GridScenario& scenario = grid_scenarios().front();
  const Grid grid{{1, 1}, "full_shard", 2};
  const Communicator part = first_ranks(grid.ranks());
  if (world().rank() >= grid.ranks()) return;
  TinyRunOptions options = run_of(scenario, grid);
  options.device = stand_in_device();
  const auto forgetful = [](const Communicator& communicator) -> std::unique_ptr<Collectives> {
    return std::make_unique<Forgetful>(make_stand_in_collectives(communicator));
  };
  try {
    run_compared(part, forgetful, dataset_of(scenario, grid), options);
  } catch (const Error&) {  // what it computes may be anything
  }
  const std::vector<std::string> faults = device().take_faults();
  const auto names = [&](const char* call) {
    return std::any_of(faults.begin(), faults.end(), [&](const std::string& fault) {
      return fault.find(call) != std::string::npos && fault.find("no event") != std::string::npos;
    });
  };
  EXPECT_TRUE(names("ncclAllGather in stream")) << "parameters";
  EXPECT_TRUE(names("ncclReduceScatter in stream")) << "gradients";
}

}  // namespace
}  // namespace zea::testing::test_device_layouts
