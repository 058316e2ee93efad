// SPDX-License-Identifier: Apache-2.0
// From flat buffers to files: the boxes of the files' tensors that lie in a range of a rank's
// buffer, and host memory for them where the buffer is on a device. Loading, resuming and saving
// all walk these boxes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "checkpoint/frozen_values.hpp"
#include "parallel/engine.hpp"
#include "schedule/plan.hpp"

namespace zea::detail {

struct HeldBox {
  int param;           ///< index in ModelSpec::params
  Extent extent;       ///< of its tensor in files, not of the piece that a tp rank holds
  int64_t flat_begin;  ///< element of the flat buffer where its packed elements start
};

/// What `world_rank` holds in `range` of a buffer; the padding of a piece has no box.
std::vector<HeldBox> held_boxes(const Plan& plan, int buffer, int world_rank, FlatRange range);

/// The boxes that `world_rank` writes: those in its own cut of the buffer, but what several tp
/// ranks hold only on the first of them. Together all ranks write every element once.
std::vector<HeldBox> own_boxes(const Plan& plan, int buffer, int world_rank);

/// The boxes of `boxes` that have some of a state, in_blocks() as it is; where they lie in what a
/// rank keeps of the state beside `range`.
std::vector<HeldBox> state_boxes(const Plan& plan, int buffer, FlatRange range,
                                 const StateSpec& state, const std::vector<HeldBox>& boxes);

/// Fills `flat`, the elements of `range`: `read(box, target)` is given packed host memory for each
/// box or a part of it, where there is much to read by a thread for each of `cores` at once, and by
/// two of them on one, so that one waits for the disk while another checks and copies. What has no
/// box becomes zero. Boxes lie one behind the other.
void fill_boxes(const at::Tensor& flat, FlatRange range, const std::vector<HeldBox>& boxes,
                int cores, const std::function<void(const HeldBox&, void*)>& read);

/// What one rank puts into a checkpoint: one box of one state of one parameter, where training
/// keeps it.
struct OwnPiece {
  const ParamSpec* param;
  std::string state;
  int64_t elements_of_each;  ///< of the parameter have one of the state
  Extent extent;             ///< of the state
  at::Tensor values;         ///< 1-d, packed; a view of the live shard, on its device
  bool changes;              ///< optimizer steps change it
  DType dtype;               ///< in files: that of the values, or of what frozen ones came from

  int64_t element_bytes() const { return static_cast<int64_t>(zea::element_bytes(dtype)); }
  int64_t bytes() const { return values.numel() * element_bytes(); }  ///< in files
};

/// Of this rank's own cut of every buffer, parameters and optimizer state; of what several tp ranks
/// hold, the first one's. Those that change come first; what never changes has a file of its own,
/// in the types of its `origin`, or as it is held where none is known (null).
std::vector<OwnPiece> own_pieces(Engine& engine, const FrozenOrigin* origin);

/// Bytes that the files of these pieces will have, their metadata included; that of frozen values
/// only if asked for.
int64_t file_bytes(const std::vector<OwnPiece>& pieces, bool with_frozen);

}  // namespace zea::detail
