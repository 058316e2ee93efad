// SPDX-License-Identifier: Apache-2.0
// Compares two runs of one deck bit for bit, by what they left in their directories: the numbers of
// logged steps and evaluations, and the tensors of the newest checkpoints of the same step.
#pragma once

#include <cstdint>
#include <string>

namespace zea {

struct RunComparison {
  int64_t steps = 0;             ///< logged steps that both have
  std::string number;            ///< the first number that differs, in words; empty: none does
  int64_t checkpoint_step = -1;  ///< of the compared checkpoints; -1: there is no such pair
  int64_t tensors = 0;           ///< compared, states of the optimizer included
  std::string tensor;            ///< the first that differs, in words; empty: none does

  bool is_same() const { return steps > 0 && number.empty() && tensor.empty(); }
};

/// Returns the last step of `run` that was logged. Throws DeckError where there is none.
int64_t last_logged_step(const std::string& run);

/// Compares the steps up to `last_step`. Checkpoints are read tensor by tensor, so their layouts
/// may differ. Throws WeightsError where one cannot be read.
RunComparison compare_runs(const std::string& then, const std::string& now, int64_t last_step);

}  // namespace zea
