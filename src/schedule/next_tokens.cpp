// SPDX-License-Identifier: Apache-2.0
#include "schedule/next_tokens.hpp"

#include <iterator>
#include <utility>

namespace zea {

StepPlan plan_of_next_tokens(StepPlan prompts) {
  for (std::vector<MicrobatchPlan>& microbatches : prompts.replicas)
    for (MicrobatchPlan& part : microbatches) {
      part.items = {};
      part.tokens = std::ssize(part.samples);
      part.targets = 0;
    }
  return count_step(std::move(prompts.replicas), prompts.shard_group);
}

}  // namespace zea
