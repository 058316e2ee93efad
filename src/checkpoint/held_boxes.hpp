// SPDX-License-Identifier: Apache-2.0
// The boxes of the files' tensors that lie in a range of a rank's flat buffer, and host memory
// for them where the buffer is on a device. Loading, resuming and saving all walk these boxes.
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

/// Returns the boxes that `world_rank` holds in `range` of a buffer; padding has no box.
std::vector<HeldBox> held_boxes(const Plan& plan, int buffer, int world_rank, FlatRange range);

/// Returns the boxes that `world_rank` writes: those in its own cut of the buffer; of several
/// tp ranks with the same values the first writes. Together all ranks write every element once.
std::vector<HeldBox> own_boxes(const Plan& plan, int buffer, int world_rank);

/// Returns the boxes of a state, in_blocks() as it is, for those of `boxes` that have one, with
/// their place in this rank's memory of the state for `range`.
std::vector<HeldBox> state_boxes(const Plan& plan, int buffer, FlatRange range,
                                 const StateSpec& state, const std::vector<HeldBox>& boxes);

/// Fills `flat`, the elements of `range`: `read(box, target)` fills packed host memory for each
/// box or a part of it. Large reads use a thread per core of `cores`, and two on one core, so
/// that one waits for the disk while another checks and copies. Elements without a box become
/// zero. Boxes are in order.
void fill_boxes(const at::Tensor& flat, FlatRange range, const std::vector<HeldBox>& boxes,
                int cores, const std::function<void(const HeldBox&, void*)>& read);

/// A value that one rank writes to a checkpoint: a box of a state of a parameter, in training's
/// memory.
struct OwnPiece {
  const ParamSpec* param;
  std::string state;
  int64_t elements_of_each;  ///< elements of the parameter per element of the state
  Extent extent;             ///< of the state
  at::Tensor values;         ///< 1-d, packed; a view of the live shard, on its device
  bool changes;              ///< optimizer steps change it
  DType dtype;               ///< in files: that of the values, or of a frozen value's origin

  int64_t element_bytes() const { return static_cast<int64_t>(zea::element_bytes(dtype)); }
  int64_t bytes() const { return values.numel() * element_bytes(); }  ///< in files
};

/// Returns this rank's pieces of every buffer, parameters and optimizer state, as own_boxes()
/// says. Pieces that change come first; frozen ones have a file of their own, in the types of
/// their `origin`, or as they are held if it is null.
std::vector<OwnPiece> own_pieces(Engine& engine, const FrozenOrigin* origin);

/// Returns the bytes of the files of these pieces with their metadata; `with_frozen`: of the
/// frozen file, too.
int64_t file_bytes(const std::vector<OwnPiece>& pieces, bool with_frozen);

}  // namespace zea::detail
