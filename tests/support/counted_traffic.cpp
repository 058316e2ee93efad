// SPDX-License-Identifier: Apache-2.0
#include "support/counted_traffic.hpp"

#include <gtest/gtest.h>

#include <array>

#include "batch/make_microbatch.hpp"
#include "estimate/traffic.hpp"
#include "schedule/communicators.hpp"
#include "support/shared_directory.hpp"
#include "support/tiny_llava.hpp"
#include "train/training_data.hpp"

namespace zea::testing {
namespace {

TinyRunOptions make_run(const TrafficLayout& layout) {
  TinyRunOptions run;
  run.config_json = tiny_llava_config();
  run.deck.precision.preset = "fp64";
  run.deck.data.row_tokens = 40;
  run.deck.schedule = {.steps = 2, .global_batch = 7};
  run.deck.meshes["vision"].strategy = run.deck.meshes["llm"].strategy = "no_shard";
  layout.refine(run);
  return run;
}

/// By the formulas, for step `step` on this rank.
Traffic expected_traffic(const Plan& plan, const Dataset& dataset, int64_t step, int rank) {
  Sampler sampler(static_cast<int64_t>(dataset.index().size()), plan.options.schedule.global_batch,
                  plan.options.run.seed, plan.options.data.shuffle);
  const LoaderOptions loading = loading_of(plan);
  const StepPlan step_plan = plan.step_plan(step, sampler.global_batch(step), dataset.index());
  std::vector<MicrobatchRows> rows;
  for (const MicrobatchPlan& part : step_plan.replicas[plan.replica_of(rank)]) {
    rows.push_back(rows_of_microbatch(
        tokens_of(load_microbatch(dataset, loading, part.samples).samples, plan.model), plan.model,
        plan.replica_layout(rank), plan.bidirectional_images));
    rows.back().text.experts.replicas = part.expert_tokens;
  }
  return traffic_of_step(plan, step_plan, rows, rank);
}

}  // namespace

void each(TinyRunOptions& run, void (*change)(ModuleMeshOptions&)) {
  for (const char* module : {"vision", "llm"}) change(run.deck.meshes[module]);
}

void use_cp(TinyRunOptions& run, const char* mode, int64_t cp) {
  for (const char* module : {"vision", "llm"}) {
    ModuleMeshOptions& mesh = run.deck.meshes[module];
    mesh.cp = cp;
    mesh.cp_mode = mode;
    if (mesh.cp_mode != CpMode::Ulysses) mesh.cp_block = 8;
  }
}

namespace {

/// On the host reductions have no separate communicators, and the world's is not used.
void expect_communicators_as_planned(Engine& engine) {
  const Plan& plan = engine.plan();
  int planned = count_small_communicators(plan, engine.world_rank()) - (plan.world_size() > 1);
  for (const auto& [of, name] : communicators_of_groups(plan, engine.world_rank()))
    planned += of.reduces ? 0 : 1;
  EXPECT_EQ(engine.mesh().num_communicators(), planned);
}

}  // namespace

void expect_counted_traffic(const Communicator& world, const TrafficLayout& layout) {
  SCOPED_TRACE(layout.name);
  const bool takes_part = world.rank() < layout.ranks;
  const Communicator part = world.split(takes_part ? 0 : Communicator::kNoColor, "layout");
  if (!takes_part) return;
  TinyRunOptions options = make_run(layout);
  const SharedDirectory folder(part);
  if (!options.deck.data.cache_features.empty())
    options.deck.data.cache_features = folder / options.deck.data.cache_features;
  const MemoryDataset dataset =
      make_tiny_dataset(plan_of(options, layout.ranks).model, 14, layout.images, 5);
  TinyRun run(part, make_host_collectives, dataset, options);
  TinyResult result;
  Traffic all;
  for (int64_t step = 0; step < 2; ++step) {
    const Traffic before = run.engine().mesh().traffic();
    run.train(1, result);
    const Traffic counted = traffic_between(before, run.engine().mesh().traffic());
    Traffic expected = expected_traffic(run.engine().plan(), dataset, step, part.rank());
    for (const std::string& name : layout.routed) {
      std::array<int64_t, 2> sums{counted.at(name), expected.at(name)};
      run.control().all_reduce(sums.data(), 2, DType::Int64, ReduceOp::Sum).wait();
      EXPECT_NEAR(static_cast<double>(sums[0]) / static_cast<double>(sums[1]), 1, 0.25) << name;
      expected[name] = counted.at(name);
    }
    EXPECT_EQ(counted, expected);
    add_traffic(all, counted);
  }
  for (const std::string& name : layout.sends) {
    // One rank may have nothing to send: no image in these steps.
    run.control().all_reduce(&all[name], 1, DType::Int64, ReduceOp::Max).wait();
    EXPECT_GT(all[name], 0) << name;
  }
  expect_communicators_as_planned(run.engine());
}

}  // namespace zea::testing
