// SPDX-License-Identifier: Apache-2.0
#include "held_boxes.hpp"

namespace zea::detail {

std::vector<HeldBox> held_boxes(const Plan& plan, int group, int world_rank, FlatRange range) {
  const int tp_rank = plan.tp_rank(world_rank, group);
  std::vector<HeldBox> boxes;
  for (const FlatPart& part : parts_in_range(plan.groups[group], range))
    for (PieceBox& box :
         boxes_of_piece(plan.model.params[part.param], plan.cuts[part.param], tp_rank,
                        part.param_begin, part.param_begin + part.elements))
      boxes.push_back(
          {part.param, std::move(box.extent), part.flat_begin + box.begin - part.param_begin});
  return boxes;
}

std::vector<HeldBox> own_boxes(const Plan& plan, int group, int world_rank) {
  const int tp_rank = plan.tp_rank(world_rank, group);
  std::vector<HeldBox> boxes = held_boxes(plan, group, world_rank, plan.own_cut(world_rank, group));
  std::erase_if(boxes,
                [&](const HeldBox& box) { return !plan.cuts[box.param].is_first_holder(tp_rank); });
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
