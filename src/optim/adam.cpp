// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW (arXiv:1711.05101): one kernel, which takes the decay into the gradient or not.
#include "kernels/flat_kernels.hpp"
#include "optim/update.hpp"

namespace zea {

AdamwUpdate adamw_update(const OptimOptions& optim, const Update& update, bool decoupled) {
  return {.lr = update.lr,
          .beta1 = optim.betas[0],
          .beta2 = optim.betas[1],
          .eps = optim.eps,
          .weight_decay = update.weight_decay,
          .decoupled = decoupled,
          .gradient_scale = update.gradient_scale,
          .device_scale = update.device_scale,
          .step = update.step};
}

namespace {

void update_all(const std::vector<OwnedRun>& runs, const OptimOptions& optim, bool decoupled) {
  std::vector<AdamwRun> all;
  for (const OwnedRun& run : runs)
    all.push_back({run.master, run.gradient, run.states[0], run.states[1],
                   adamw_update(optim, run.update, decoupled)});
  adamw(all);
}

}  // namespace

void update_adam(const std::vector<OwnedRun>& runs, const OptimOptions& optim) {
  update_all(runs, optim, false);
}

void update_adamw(const std::vector<OwnedRun>& runs, const OptimOptions& optim) {
  update_all(runs, optim, true);
}

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
