// SPDX-License-Identifier: Apache-2.0
// Layouts of the tables of grids and pipelines for a device that is not the host, each with the run
// of one rank that it equals.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/compared_run.hpp"
#include "support/grid_scenarios.hpp"
#include "support/pipeline_table.hpp"

namespace zea::testing {

struct SampledLayout {
  struct Run {
    TinyRunOptions options;
    MemoryDataset dataset;
  };
  std::string name;
  int ranks;
  std::function<Run()> run, one_rank;  ///< a few steps in fp64
};

SampledLayout grid_layout(const GridScenario& scenario, const Grid& grid);
SampledLayout pipeline_layout(const PipelineLayout& layout);
/// Every `stride`-th grid of each scenario, but for scores that no device's attention caps.
std::vector<SampledLayout> sampled_grids(size_t stride);
/// Every `stride`-th pipeline that devices do not refuse.
std::vector<SampledLayout> sampled_pipelines(size_t stride);

/// Runs each on `device` over ranks of its own, with `options` as `prepare` leaves them, and passes
/// its results to `compare` on the first of these, with a communicator of that rank alone.
/// Collective over the world.
void sweep_on_device(const std::vector<SampledLayout>& layouts, at::Device device,
                     const MakeCollectives& make,
                     const std::function<void(TinyRunOptions&)>& prepare,
                     const std::function<void(const Communicator& alone, const SampledLayout&,
                                              const ComparedResult& got)>& compare);

}  // namespace zea::testing
