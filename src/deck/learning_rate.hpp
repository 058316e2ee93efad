// SPDX-License-Identifier: Apache-2.0
// The learning rate of each step: a linear rise over the warm-up, then a fall towards the least
// rate.
#pragma once

#include <cstdint>
#include <string>

#include "deck/options.hpp"

namespace zea {

/// Rate of the update that makes step `step` of `steps`; steps count from 1. With s the step, S the
/// schedule's end (decay_until or `steps`), w the warm-up, the rate is lr s / w up to s = w. After
/// that, with p = (s - 1 - w) / (S - w):
///   cosine        min_lr + (lr - min_lr) (1 + cos(pi p)) / 2 (arXiv:1608.03983)
///   linear        min_lr + (lr - min_lr) (1 - p)
///   wsd           min_lr + (lr - min_lr) min(1, (S - s + 1) / decay_steps) (arXiv:2404.06395 with
///                 the linear fall of arXiv:2405.18392)
///   inverse_sqrt  max(min_lr, lr sqrt(W / (s - 1 - w + W))) with W = max(w, 1) (arXiv:1706.03762,
///                 section 5.3)
/// These are transformers' rates: its schedulers count steps from 0, so p is below 1 at the last
/// step. Their warm-up begins with a step at rate 0; zea's leaves that step out. Steps after S keep
/// the rate of step S.
double learning_rate(const OptimOptions& optim, int64_t step, int64_t steps);

/// Describes how the schedule changes if a run that has done `step` steps under the deck `then`
/// continues with another end of its schedule; empty if its rates stay as they were.
std::string describe_new_schedule(const Options& now, const Options& then, int64_t step);

}  // namespace zea
