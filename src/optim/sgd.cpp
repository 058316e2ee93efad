// SPDX-License-Identifier: Apache-2.0
// torch.optim.SGD without dampening and Nesterov's step. A buffer of zeros makes torch's first
// step.
#include "optim/update.hpp"

namespace zea {

void update_sgd(const std::vector<OwnedRun>& runs, const OptimOptions& optim) {
  std::vector<SgdRun> all;
  for (const auto& [master, gradient, states, update] : runs) {
    const SgdRun run{master,
                     gradient,
                     states[0],
                     {.lr = update.lr,
                      .momentum = optim.momentum,
                      .weight_decay = update.weight_decay,
                      .gradient_scale = update.gradient_scale,
                      .device_scale = update.device_scale}};
    if (states[0].scalar_type() == master.scalar_type())
      all.push_back(run);
    else
      sgd_reference(run);  // the kernel takes one type
  }
  sgd(all);
}

}  // namespace zea
