// SPDX-License-Identifier: Apache-2.0
// What one rank puts into a checkpoint: its own cut of every buffer, parameters and optimizer
// state, box by box; of what several tp ranks hold, the first one's. What never changes has a file
// of its own.
#pragma once

#include <string>
#include <vector>

#include "zea/parallel/engine.hpp"

namespace zea::detail {

/// One box of one state of one parameter, where training keeps it.
struct OwnPiece {
  const ParamSpec* param;
  std::string state;
  Extent extent;
  at::Tensor values;  ///< 1-d, packed; a view of the live shard, on its device
  bool changes;       ///< optimizer steps change it
};

/// Bytes that this rank's files will have, their metadata included; that of frozen values only if
/// asked for.
int64_t own_file_bytes(Engine& engine, bool with_frozen);

/// Those that change come first.
std::vector<OwnPiece> own_pieces(Engine& engine);

}  // namespace zea::detail
