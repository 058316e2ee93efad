// SPDX-License-Identifier: Apache-2.0
// torch.optim.SGD without dampening and Nesterov's step: buffer = momentum * buffer + gradient +
// decay * parameter, which is then taken lr times. A buffer of zeros makes torch's first step.
#include "zea/optim/update.hpp"

namespace zea {

void update_sgd(const std::vector<OwnedRun>& runs, const OptimOptions& optim) {
  for (const OwnedRun& run : runs) {
    const Update& update = run.update;
    const at::Tensor &buffer = run.states[0], &master = run.master;
    buffer.mul_(optim.momentum).add_(run.gradient, update.gradient_scale);
    if (update.weight_decay != 0) buffer.add_(master, update.weight_decay);
    master.add_(buffer, -update.lr);
  }
}

}  // namespace zea
