// SPDX-License-Identifier: Apache-2.0
// From flat buffers to files: the boxes of the global parameters that lie in a range of a rank's
// buffer, and host memory for them where the buffer is on a device. Loading, resuming and saving
// all walk these boxes.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "zea/plan/plan.hpp"

namespace zea::detail {

struct HeldBox {
  int param;           ///< index in ModelSpec::params
  Extent extent;       ///< of that parameter, all of it, not of the piece that a tp rank holds
  int64_t flat_begin;  ///< element of the flat buffer where its packed elements start
};

/// What `world_rank` holds in `range` of a buffer; the padding of a piece has no box.
std::vector<HeldBox> held_boxes(const Plan& plan, int buffer, int world_rank, FlatRange range);

/// The boxes that `world_rank` writes: those in its own cut of the buffer, but what several tp
/// ranks hold only on the first of them. Together all ranks write every element once.
std::vector<HeldBox> own_boxes(const Plan& plan, int buffer, int world_rank);

/// Fills `flat`, the elements of `range`: `read(box, target)` is given packed host memory for each
/// box or a part of it, by several threads at once where there is much to read, so that one waits
/// for the disk while another checks and copies. What has no box becomes zero. Boxes lie one
/// behind the other.
void fill_boxes(const at::Tensor& flat, FlatRange range, const std::vector<HeldBox>& boxes,
                const std::function<void(const HeldBox&, void*)>& read);

}  // namespace zea::detail
