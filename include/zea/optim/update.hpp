// SPDX-License-Identifier: Apache-2.0
// What optimizers do to owned shards: one function each, the other half of its entry in
// plan/buffers/optimizer_spec.hpp.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "zea/deck/options.hpp"
#include "zea/kernels/flat_kernels.hpp"

namespace zea {

/// A run of a shard whose parameters have one rule: 1-d, contiguous, of one length.
struct OwnedRun {
  at::Tensor master, gradient;
  std::vector<at::Tensor> states;  ///< as OptimizerSpec lists them; of no elements: none is kept
};

struct Update {
  double lr = 0;
  double weight_decay = 0;
  double gradient_scale = 1;  ///< the gradient is multiplied by it: clipping and 1/N
  int64_t step = 1;           ///< counts from 1
};

/// Changes master and states in place.
using UpdateFunction = void (*)(const OwnedRun&, const OptimOptions&, const Update&);

AdamwUpdate adamw_update(const OptimOptions& optim, const Update& update, bool decoupled);

void update_adamw(const OwnedRun& run, const OptimOptions& optim, const Update& update);
void update_adamw_8bit(const OwnedRun& run, const OptimOptions& optim, const Update& update);
void update_adam(const OwnedRun& run, const OptimOptions& optim, const Update& update);
void update_sgd(const OwnedRun& run, const OptimOptions& optim, const Update& update);

}  // namespace zea
