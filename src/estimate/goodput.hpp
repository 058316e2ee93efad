// SPDX-License-Identifier: Apache-2.0
// The interval between checkpoints that loses the least time to failures, and the fraction of the
// time in which a run makes progress.
#pragma once

namespace zea {

/// Times of a run in seconds.
struct FailureTimes {
  double between_failures = 0;  ///< their mean, of the whole job
  double save = 0;              ///< for which training stands still for a checkpoint
  double restart = 0;           ///< from a failure until the run trains again
};

/// Seconds of training between two checkpoints (Daly, "A higher order estimate of the optimum
/// checkpoint interval for restart dumps", Future Generation Computer Systems 22, 2006, equation
/// 37, whose first term is Young's).
double best_interval(const FailureTimes& times);

/// The expected fraction of the time spent on steps that are not lost, with a checkpoint after each
/// `interval` seconds of training: failures are independent, and also occur while a checkpoint is
/// written and while the run restarts (Daly, equation 20).
double goodput(const FailureTimes& times, double interval);

}  // namespace zea
