// SPDX-License-Identifier: Apache-2.0
// The run of a pipeline of the table, and its results on one rank.
#pragma once

#include "support/compared_run.hpp"
#include "support/pipeline_table.hpp"

namespace zea::testing {

/// Twenty samples of its model; `others` gives other ones.
MemoryDataset dataset_of(const PipelineLayout& layout, uint64_t others = 0);

/// Three steps of `deck`, which the layout outlives.
TinyRunOptions run_of(const PipelineLayout& layout, const Options& deck);

ComparedResult run_on_one_rank(const Communicator& alone, const PipelineLayout& layout);

}  // namespace zea::testing
