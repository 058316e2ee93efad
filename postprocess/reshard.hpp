// SPDX-License-Identifier: Apache-2.0
// A checkpoint cut anew for another number of ranks, without ranks: the same tensors, states and
// position in as many shard files as are asked for.
#pragma once

#include <cstdint>
#include <string>

#include "zea/copy.hpp"

namespace zea {

struct ReshardOptions {
  std::string target;  ///< directory of the new checkpoint
  int64_t ranks = 1;
  CopyLimits limits;
  bool show_progress = false;
  bool replaces = false;  ///< a checkpoint in the target's place
};

void reshard(const StateSource& source, const ReshardOptions& options);

}  // namespace zea
