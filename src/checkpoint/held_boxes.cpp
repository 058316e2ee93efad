// SPDX-License-Identifier: Apache-2.0
#include "held_boxes.hpp"

namespace zea::detail {

std::vector<HeldBox> held_boxes(const ModelSpec& model, const FlatGroup& group, FlatRange range) {
  std::vector<HeldBox> boxes;
  for (const FlatPart& part : parts_in_range(group, range)) {
    int64_t flat = part.flat_begin;
    for (const Extent& extent : boxes_of_range(model.params[part.param].shape, part.param_begin,
                                               part.param_begin + part.elements)) {
      boxes.push_back({part.param, extent, flat});
      flat += extent.elements();
    }
  }
  return boxes;
}

void fill_boxes(const at::Tensor& flat, FlatRange range, const std::vector<HeldBox>& boxes,
                const std::function<void(const HeldBox&, void*)>& read) {
  for (const HeldBox& box : boxes) {
    const at::Tensor place = flat.narrow(0, box.flat_begin - range.begin, box.extent.elements());
    const at::Tensor host =
        place.is_cpu() ? place : at::empty(place.sizes(), place.options().device(at::kCPU));
    read(box, host.data_ptr());
    if (!place.is_cpu()) place.copy_(host);
  }
}

}  // namespace zea::detail
