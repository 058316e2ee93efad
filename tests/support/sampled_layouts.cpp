// SPDX-License-Identifier: Apache-2.0
#include "support/sampled_layouts.hpp"

#include <algorithm>

#include "support/mpi_main.hpp"
#include "support/pipeline_runs.hpp"

namespace zea::testing {
namespace {

/// The plan refuses such scores for GPUs.
bool caps_scores(const GridScenario& scenario, const Grid& grid) {
  const TinyRunOptions run = run_of(scenario, grid);
  ModelSpec model = make_model_spec(run.config_json);
  if (run.remake) run.remake(model);
  return std::ranges::any_of(model.decoder.block.attentions(),
                             [](const AttentionSpec& way) { return way.scores.softcap > 0; });
}

SampledLayout::Run grid_run(const GridScenario& scenario, const Grid& grid) {
  return {run_of(scenario, grid), dataset_of(scenario, grid)};
}

}  // namespace

SampledLayout grid_layout(const GridScenario& scenario, const Grid& grid) {
  return {std::string(scenario.name) + "; " + grid.name(), grid.ranks(),
          [&scenario, grid] { return grid_run(scenario, grid); },
          [&scenario, grid] { return grid_run(scenario, one_rank_like(grid)); }};
}

std::vector<SampledLayout> sampled_grids(size_t stride) {
  std::vector<SampledLayout> layouts;
  size_t number = 0;
  for (const GridScenario& scenario : grid_scenarios())
    for (const Grid& grid : grids_for(scenario, false))
      if (number++ % stride == 0 && !caps_scores(scenario, grid))
        layouts.push_back(grid_layout(scenario, grid));
  return layouts;
}

SampledLayout pipeline_layout(const PipelineLayout& layout) {
  const auto run = [layout](const Options& deck) {
    return SampledLayout::Run{run_of(layout, deck), dataset_of(layout)};
  };
  return {layout.name(), layout.ranks(), [=] { return run(deck_of(layout)); },
          [=] { return run(deck_of_one_rank(layout)); }};
}

std::vector<SampledLayout> sampled_pipelines(size_t stride) {
  std::vector<SampledLayout> layouts;
  for (size_t i = 0; i < pipelines().size(); i += stride) {
    const PipelineLayout& layout = pipelines()[i];
    if (!layout.is_refused_on_devices()) layouts.push_back(pipeline_layout(layout));
  }
  return layouts;
}

void sweep_on_device(const std::vector<SampledLayout>& layouts, at::Device device,
                     const MakeCollectives& make,
                     const std::function<void(TinyRunOptions&)>& prepare,
                     const std::function<void(const Communicator& alone, const SampledLayout&,
                                              const ComparedResult& got)>& compare) {
  const Communicator alone = world().communicator().split(world().rank(), "alone");
  std::vector<Trial> trials;
  for (size_t i = 0; i < layouts.size(); ++i)
    trials.push_back({layouts[i].name, i, layouts[i].ranks, make});
  sweep(trials, [&](const Communicator& part, const Trial& trial) {
    SampledLayout::Run run = layouts[trial.layout].run();
    run.options.device = device;
    prepare(run.options);
    const ComparedResult got = run_compared(part, trial.make, run.dataset, run.options);
    if (part.rank() == 0) compare(alone, layouts[trial.layout], got);
  });
}

}  // namespace zea::testing
