// SPDX-License-Identifier: Apache-2.0
// Adam and AdamW (arXiv:1711.05101): one kernel, which takes the decay into the gradient or not.
#include "zea/kernels/flat_kernels.hpp"
#include "zea/optim/update.hpp"

namespace zea {
namespace {

void update_moments(const OwnedRun& run, const OptimOptions& optim, const Update& update,
                    bool decoupled) {
  adamw(run.master, run.gradient, run.states[0], run.states[1],
        {.lr = update.lr,
         .beta1 = optim.betas[0],
         .beta2 = optim.betas[1],
         .eps = optim.eps,
         .weight_decay = update.weight_decay,
         .decoupled = decoupled,
         .gradient_scale = update.gradient_scale,
         .step = update.step});
}

}  // namespace

void update_adam(const OwnedRun& run, const OptimOptions& optim, const Update& update) {
  update_moments(run, optim, update, false);
}

void update_adamw(const OwnedRun& run, const OptimOptions& optim, const Update& update) {
  update_moments(run, optim, update, true);
}

}  // namespace zea
