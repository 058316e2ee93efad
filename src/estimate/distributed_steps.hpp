// SPDX-License-Identifier: Apache-2.0
// The steps of samples as layouts distribute them, reduced to the replica with the most FLOPs, for
// which the others wait. Layouts with the same number of replicas and the same costs of samples
// share them.
#pragma once

#include <memory>
#include <vector>

#include "estimate/step_samples.hpp"
#include "schedule/plan.hpp"

namespace zea {

/// A step; `plan` has only the replica with the most FLOPs, as replica 0.
struct DistributedStep {
  StepPlan plan;
  int replica = 0;     ///< the number of that replica among all
  double balance = 1;  ///< FLOPs of all replicas over those of the most loaded, times replicas
};

/// Caches the steps of some samples by the ways in which they are distributed. All plans have the
/// same model and data options.
class DistributedSteps {
 public:
  /// `samples` outlive this.
  explicit DistributedSteps(const StepSamples& samples);
  ~DistributedSteps();

  std::vector<DistributedStep> of(const Plan& plan);

 private:
  struct Dealing;

  const StepSamples& samples_;
  std::vector<std::unique_ptr<const Dealing>> known_;
};

}  // namespace zea
