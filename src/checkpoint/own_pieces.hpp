// SPDX-License-Identifier: Apache-2.0
// What one rank puts into a checkpoint: its own cut of every buffer, parameters and moments, box by
// box; of what several tp ranks hold, the first one's.
#pragma once

#include <vector>

#include "zea/parallel/engine.hpp"

namespace zea::detail {

/// One box of one state of one parameter, where training keeps it.
struct OwnPiece {
  const ParamSpec* param;
  const char* state;
  Extent extent;
  at::Tensor values;  ///< 1-d, packed; a view of the live shard, on its device
  bool changes;       ///< optimizer steps change it
};

/// Bytes that this rank's file will have, its metadata included.
int64_t own_file_bytes(Engine& engine);

std::vector<OwnPiece> own_pieces(Engine& engine);

}  // namespace zea::detail
