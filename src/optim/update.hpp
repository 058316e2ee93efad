// SPDX-License-Identifier: Apache-2.0
// The updates of optimizers on owned shards: one function each, the other half of its entry in
// layout/optimizer_spec.hpp.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "deck/options.hpp"
#include "kernels/flat_kernels.hpp"

namespace zea {

struct Update {
  double lr = 0;
  double weight_decay = 0;
  double gradient_scale = 1;  ///< the gradient is multiplied by it: clipping and 1/N
  const double* device_scale =
      nullptr;       ///< as AdamwUpdate's; by is_checked_on_device()'s optimizers
  int64_t step = 1;  ///< counts from 1
};

/// A run of a shard whose parameters have one rule: 1-d, contiguous, of one length.
struct OwnedRun {
  at::Tensor master, gradient;
  std::vector<at::Tensor> states;  ///< as OptimizerSpec lists them; of no elements: none is kept
  Update update;
};

/// Changes masters and states of all runs of a rank in place.
using UpdateFunction = void (*)(const std::vector<OwnedRun>&, const OptimOptions&);

AdamwUpdate adamw_update(const OptimOptions& optim, const Update& update, bool decoupled);

void update_adamw(const std::vector<OwnedRun>& runs, const OptimOptions& optim);
void update_adamw_8bit(const std::vector<OwnedRun>& runs, const OptimOptions& optim);
void update_adam(const std::vector<OwnedRun>& runs, const OptimOptions& optim);
void update_sgd(const std::vector<OwnedRun>& runs, const OptimOptions& optim);

}  // namespace zea
