// SPDX-License-Identifier: Apache-2.0
#include "schedule/row_ops.hpp"

#include <algorithm>

#include "layout/visibility.hpp"

namespace zea::detail {

UnitWork UnitWork::of_text(const ModelSpec& model, const UnitSpec& unit, int64_t tokens) {
  if (unit.encoder < 0) return {tokens};
  const ItemShape item = model.encoders[unit.encoder].item_shape();
  return {std::max<int64_t>(1, item.features > 0 ? tokens / item.features : 0), item};
}

ItemShape times_the_tokens(ItemShape item, int64_t times) {
  item.tokens *= times;
  item.features *= times;
  if (item.fitted) {
    item.fitted->row_ends *= times;
    item.fitted->sources *= times;
  }
  if (item.tiles > 1) item.tiles *= times;
  return item;
}

UnitRowCounts::UnitRowCounts(const ModelSpec& model, const UnitSpec& unit, const UnitWork& work) {
  const int64_t window = unit.kind == UnitKind::Block ? model.attention(unit).window : 0;
  if (unit.encoder < 0) {
    tokens = projected = work.count;
    pairs = visible_pairs(tokens, window);
    return;
  }
  const EncoderSpec& encoder = model.encoders[unit.encoder];
  tokens = work.count * work.item.tokens;
  if (encoder.modality() == Modality::Image)
    patches = work.count * work.item.tiles * encoder.patches().patches_of(work.item);
  projected = work.count * work.item.projected();
  features = work.count * work.item.features;
  pairs = static_cast<double>(tokens * work.item.most_seen(window));
}

}  // namespace zea::detail
