// SPDX-License-Identifier: Apache-2.0
// AdamW with both moments in blocks of 8 bits (kernels/blockwise_adamw.hpp); of what has none, as
// AdamW's.
#include "kernels/flat_kernels.hpp"
#include "optim/update.hpp"

namespace zea {

void update_adamw_8bit(const std::vector<OwnedRun>& runs, const OptimOptions& optim) {
  std::vector<OwnedRun> without_blocks;
  for (const OwnedRun& run : runs) {
    const std::vector<at::Tensor>& states = run.states;
    if (states[0].numel() > 0)
      without_blocks.push_back(run);
    else
      blockwise_adamw(run.master, run.gradient, {states[2], states[3]}, {states[4], states[5]},
                      adamw_update(optim, run.update, true));
  }
  update_adamw(without_blocks, optim);
}

}  // namespace zea
