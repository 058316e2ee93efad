// SPDX-License-Identifier: Apache-2.0
#include "layout/sample_index.hpp"

#include <algorithm>

namespace zea {

ItemList::ItemList(std::initializer_list<int64_t> counts) {
  int encoder = 0;
  for (int64_t items : counts) add(encoder++, items);
}

int64_t ItemList::of(int encoder) const {
  int64_t items = 0;
  for (const Run& run : runs_)
    if (run.encoder == encoder) items += run.items;
  return items;
}

void ItemList::add(int encoder, int64_t items, const ItemShape& shape) {
  if (items == 0) return;
  const auto next = std::ranges::upper_bound(runs_, encoder, {}, &Run::encoder);
  if (next != runs_.begin() && std::prev(next)->encoder == encoder &&
      std::prev(next)->shape == shape)
    std::prev(next)->items += items;
  else
    runs_.insert(next, {encoder, items, shape});
}

std::vector<ItemShape> ItemList::shapes(int encoder, const EncoderSpec& spec) const {
  std::vector<ItemShape> shapes;
  for (const Run& run : runs_)
    if (run.encoder == encoder)
      shapes.insert(shapes.end(), static_cast<size_t>(run.items),
                    run.shape.tokens > 0 ? run.shape : spec.item_shape());
  return shapes;
}

ItemList ItemList::kinds() const {
  ItemList found;
  for (const Run& run : runs_)
    if (found.of(run.encoder) == 0) found.add(run.encoder, 1);
  return found;
}

ItemList& ItemList::operator+=(const ItemList& other) {
  for (const Run& run : other.runs_) add(run.encoder, run.items, run.shape);
  return *this;
}

}  // namespace zea
