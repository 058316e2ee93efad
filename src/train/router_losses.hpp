// SPDX-License-Identifier: Apache-2.0
// The losses that routers add to that of the targets, over the global batch of a step.
//
// With T tokens of the global batch, L layers with E experts each, C(l, e) of the tokens sent to an
// expert and P(l, e) the sum over tokens of the softmax of their scores there, the losses are
//   pooled:    aux E sum_e (sum_l C) (sum_l P) / (L T)^2, over the layers with E experts,
//   per layer: aux E sum_l sum_e C P / T^2,
//   z:         z sum_l sum_t logsumexp(scores)^2 / T.
// The first is load_balancing_loss_func of transformers for a batch without padding. Gradients
// reach P and the scores; C has none. C counts the whole step, since any part of it has other
// counts on other layouts, so a forward of all microbatches comes before the step.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "parallel/engine.hpp"
#include "train/expert_loads.hpp"

namespace zea {

class RouterLosses {
 public:
  /// `control`: host collectives over all ranks. Both outlive this.
  RouterLosses(Engine& engine, Collectives& control);

  /// Returns the weights of the losses of a step; none where there is no loss. Collective.
  RouterLossesOfUnits weights(const RankStep& step, const std::vector<Microbatch>& microbatches);

 private:
  std::vector<double> sums_of(const RankStep& step, const std::vector<Microbatch>& microbatches);

  Engine& engine_;
  Collectives& control_;
  ExpertLoads loads_;
};

}  // namespace zea
