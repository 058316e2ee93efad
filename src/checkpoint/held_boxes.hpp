// SPDX-License-Identifier: Apache-2.0
// From flat buffers to files: the boxes of parameters that lie in a range of a buffer, and host
// memory for them where the buffer is on a device. Loading, resuming and saving all walk these
// boxes.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "zea/plan/plan.hpp"

namespace zea::detail {

struct HeldBox {
  int param;           ///< index in ModelSpec::params
  Extent extent;       ///< of that parameter
  int64_t flat_begin;  ///< element of the flat buffer where its packed elements start
};

std::vector<HeldBox> held_boxes(const ModelSpec& model, const FlatGroup& group, FlatRange range);

/// Fills the place of each box in `flat`, the elements of `range`: `read(box, target)` is given
/// packed host memory.
void fill_boxes(const at::Tensor& flat, FlatRange range, const std::vector<HeldBox>& boxes,
                const std::function<void(const HeldBox&, void*)>& read);

}  // namespace zea::detail
