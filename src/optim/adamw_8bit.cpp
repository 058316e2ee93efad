// SPDX-License-Identifier: Apache-2.0
// AdamW with both moments in blocks of 8 bits (kernels/blockwise_adamw.hpp); of what has none, as
// AdamW's.
#include "zea/kernels/blockwise_adamw.hpp"
#include "zea/optim/update.hpp"

namespace zea {

void update_adamw_8bit(const OwnedRun& run, const OptimOptions& optim, const Update& update) {
  const std::vector<at::Tensor>& states = run.states;
  if (states[0].numel() > 0) return update_adamw(run, optim, update);
  blockwise_adamw(run.master, run.gradient, {states[2], states[3]}, {states[4], states[5]},
                  adamw_update(optim, update, true));
}

}  // namespace zea
