// SPDX-License-Identifier: Apache-2.0
// The learning rate of each step: a linear rise over the warm-up, then a fall towards the least
// rate.
#pragma once

#include <cstdint>

#include "zea/deck/options.hpp"

namespace zea {

/// Rate of the update that makes step `step` of `steps`; steps count from 1. With s the step, S the
/// steps, w the warm-up and p = (s - w) / (S - w), after s = w:
///   cosine        min_lr + (lr - min_lr) (1 + cos(pi p)) / 2 (arXiv:1608.03983)
///   linear        min_lr + (lr - min_lr) (1 - p)
///   wsd           min_lr + (lr - min_lr) min(1, (S - s) / decay_steps) (arXiv:2404.06395 with the
///                 linear fall of arXiv:2405.18392)
///   inverse_sqrt  max(min_lr, lr sqrt(max(w, 1) / s)) (arXiv:1706.03762, section 5.3)
double learning_rate(const OptimOptions& optim, int64_t step, int64_t steps);

}  // namespace zea
