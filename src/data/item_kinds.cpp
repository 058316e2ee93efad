// SPDX-License-Identifier: Apache-2.0
// Which encoder takes an item: the one whose placeholders stand for it in the text.
#include <algorithm>

#include "zea/core/error.hpp"
#include "zea/data/audio.hpp"
#include "zea/data/dataset.hpp"

namespace zea {

ItemList list_items(const std::vector<Item>& items) {
  ItemList list;
  for (const Item& item : items) list.add(item.kind, 1, item.shape);
  return list;
}

void add_kind(std::vector<ItemKind>& kinds, Modality modality, int32_t token) {
  if (std::ranges::find(kinds, modality, &ItemKind::modality) == kinds.end())
    kinds.push_back({modality, token});
}

std::vector<ItemKind> item_kinds(const ModelSpec& model) {
  std::vector<ItemKind> kinds;
  for (const EncoderSpec& encoder : model.encoders)
    kinds.push_back({encoder.modality(), static_cast<int32_t>(encoder.placeholder),
                     encoder.item_shape().features,
                     encoder.varies() ? std::optional(encoder) : std::nullopt});
  return kinds;
}

ItemShape shape_of(const Item& item, const EncoderSpec& encoder) {
  if (!encoder.varies()) return encoder.item_shape();
  const bool is_clip = item.modality == Modality::Audio;
  if (is_clip ? item.samples == 0 : item.height == 0)
    throw DataError("an encoded " +
                    std::string(is_clip ? "clip without its length and rate"
                                        : "image without its height and width") +
                    " (item_shape), of which the " + encoder.name +
                    " encoder makes as many features as they ask for");
  if (!is_clip) return encoder.item_shape(ImageSize{item.height, item.width});
  const ItemShape shape = encoder.clip_shape(mel_columns(item.samples, item.rate));
  if (shape.features == 0)
    throw DataError("a clip of " + std::to_string(item.samples) + " samples at " +
                    std::to_string(item.rate) + " Hz, too short for a feature of the " +
                    encoder.name + " encoder");
  return shape;
}

/// Items stand in the order of their placeholders, so each begins behind those of the one before.
void assign_kinds(const std::vector<int32_t>& tokens, const std::vector<ItemKind>& kinds,
                  std::vector<Item>& items) {
  auto next = tokens.begin();
  for (Item& item : items) {
    const auto has_modality = [&](const ItemKind& kind) { return kind.modality == item.modality; };
    const auto kind_at = [&](int32_t token) {
      return std::ranges::find_if(
          kinds, [&](const ItemKind& kind) { return has_modality(kind) && kind.token == token; });
    };
    next = std::find_if(next, tokens.end(),
                        [&](int32_t token) { return kind_at(token) != kinds.end(); });
    // An item without placeholders is refused where its features are placed.
    const auto kind =
        next == tokens.end() ? std::ranges::find_if(kinds, has_modality) : kind_at(*next);
    ZEA_ASSERT(kind != kinds.end());
    item.kind = static_cast<int>(kind - kinds.begin());
    if (kind->varied) item.shape = shape_of(item, *kind->varied);
    // Rows of an image may end with tokens of text.
    int64_t features = kind->varied ? item.shape.features : kind->features;
    for (; features > 0 && next != tokens.end(); ++next) features -= *next == kind->token;
  }
}

}  // namespace zea
