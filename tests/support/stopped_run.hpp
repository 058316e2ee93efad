// SPDX-License-Identifier: Apache-2.0
// A run that writes a checkpoint in the middle, and the same run going on from there on another
// layout: every weight and state has the same bits, and training continues as if it had never
// stopped, in fp64 but for rounding.
#pragma once

#include <string>
#include <vector>

#include "support/compared_run.hpp"
#include "support/tiny_run.hpp"

namespace zea::testing {

/// Every nth layout of a table is tried: all under the label long, which sets ZEA_RESUME_STRIDE to
/// 1.
size_t resume_stride();

inline constexpr int64_t kStepsBeforeStop = 3, kStepsAfterStop = 3;

/// State of the uninterrupted run at its checkpoint and at its end, on all of its ranks.
struct StoppedRun {
  std::string checkpoint = {};
  Tensors weights = {};
  std::map<std::string, Tensors> states = {};
  Tensors final_weights = {};
  std::map<std::string, Tensors> final_states = {};
  std::vector<double> losses_after = {};
};

/// Optimizer and schedule of these runs, in fp64, for any mesh and model.
TinyRunOptions stopped_run_options(const std::string& config_json);

/// Trains, writes a checkpoint below `directory`, and goes on. Collective over `ranks`.
StoppedRun run_through(const Communicator& ranks, const MakeCollectives& make,
                       const Dataset& dataset, const TinyRunOptions& options,
                       const std::string& directory);

/// Resumes from the checkpoint of `expected`, which rank 0 of `ranks` compares with; the others
/// need only its checkpoint. Later results may differ by `difference`. Collective over `ranks`.
void expect_resumes(const Communicator& ranks, const MakeCollectives& make, const Dataset& dataset,
                    const TinyRunOptions& options, const StoppedRun& expected,
                    double difference = kSameTraining);

}  // namespace zea::testing
