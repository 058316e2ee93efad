// SPDX-License-Identifier: Apache-2.0
// The run of a pipeline of the table.
#pragma once

#include "support/pipeline_table.hpp"
#include "support/tiny_run.hpp"

namespace zea::testing {

/// Twenty samples of its model; `others` gives other ones.
MemoryDataset dataset_of(const PipelineLayout& layout, uint64_t others = 0);

/// Three steps of `deck`, which the layout outlives.
TinyRunOptions run_of(const PipelineLayout& layout, const Options& deck);

}  // namespace zea::testing
