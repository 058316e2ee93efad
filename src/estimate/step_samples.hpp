// SPDX-License-Identifier: Apache-2.0
// The samples of some steps, for which a plan gives numbers: those that a run draws from its data,
// or assumed ones if there is none yet. They do not depend on the layout, so that layouts are
// compared on the same samples.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layout/microbatch_rows.hpp"
#include "schedule/plan.hpp"

namespace zea {

struct StepSamples {
  std::string source;                         ///< for people: the data, or what was made up
  bool is_real = false;                       ///< a run trains on them
  int64_t first_step = 0;                     ///< of the run
  SampleTable index;                          ///< of the samples that are drawn, and of no others
  std::vector<std::vector<int64_t>> batches;  ///< of each step: numbers in `index`
  std::function<MicrobatchTokens(int64_t number)> tokens;  ///< of a sample; may read a file

  int64_t steps() const { return static_cast<int64_t>(batches.size()); }
  /// "steps 1 to 3", "the first batch".
  std::string steps_text(const Plan& plan) const;
};

/// One step of schedule.global_batch rows, each one sample: it begins with an item of every encoder
/// where that leaves room for text.
StepSamples synthetic_samples(const Plan& plan);

MicrobatchTokens tokens_of(const StepSamples& samples, const MicrobatchPlan& microbatch);

/// Returns the steps as the plan's layout distributes them.
std::vector<StepPlan> plan_steps(const Plan& plan, const StepSamples& samples);

/// The rows of each microbatch of `step` on a rank.
std::vector<MicrobatchRows> rows_of_step(const Plan& plan, const StepSamples& samples,
                                         const StepPlan& step, int world_rank);

}  // namespace zea
