// SPDX-License-Identifier: Apache-2.0
// What one rank puts into a checkpoint: its own cut of every buffer, parameters and moments, box by
// box.
#pragma once

#include <functional>
#include <string>

#include "zea/parallel/engine.hpp"

namespace zea::detail {

/// One box of one state of one parameter, packed in host memory for the time of the visit.
struct OwnPiece {
  const ParamSpec& param;
  const char* state;
  const Extent& extent;
  const void* data;
};

/// Bytes that this rank's file will have, its metadata included.
int64_t own_file_bytes(Engine& engine);

void for_each_own_piece(Engine& engine, const std::function<void(const OwnPiece&)>& visit);

}  // namespace zea::detail
