// SPDX-License-Identifier: Apache-2.0
// Which encoder takes an item: the one whose placeholders stand for it in the text.
#include <algorithm>

#include "zea/core/error.hpp"
#include "zea/data/dataset.hpp"

namespace zea {

ItemCounts count_items(const std::vector<Item>& items) {
  ItemCounts counts;
  for (const Item& item : items) counts.add(item.kind, 1);
  return counts;
}

void add_kind(std::vector<ItemKind>& kinds, Modality modality, int32_t token) {
  if (std::ranges::find(kinds, modality, &ItemKind::modality) == kinds.end())
    kinds.push_back({modality, token});
}

std::vector<ItemKind> item_kinds(const ModelSpec& model) {
  std::vector<ItemKind> kinds;
  for (const std::string& encoder : model.encoders())
    kinds.push_back({model.modality(encoder), static_cast<int32_t>(model.placeholder(encoder)),
                     model.item_shape(encoder).features});
  return kinds;
}

/// Items stand in the order of their placeholders, so each begins behind those of the one before.
std::vector<int> kinds_of_items(const std::vector<int32_t>& tokens,
                                const std::vector<Modality>& items,
                                const std::vector<ItemKind>& kinds) {
  std::vector<int> found;
  auto place = tokens.begin();
  for (const Modality modality : items) {
    const auto has_modality = [&](const ItemKind& kind) { return kind.modality == modality; };
    const auto kind_at = [&](int32_t token) {
      return std::ranges::find_if(
          kinds, [&](const ItemKind& kind) { return has_modality(kind) && kind.token == token; });
    };
    place = std::find_if(place, tokens.end(),
                         [&](int32_t token) { return kind_at(token) != kinds.end(); });
    // An item without placeholders is refused where its features are placed.
    const auto kind =
        place == tokens.end() ? std::ranges::find_if(kinds, has_modality) : kind_at(*place);
    ZEA_ASSERT(kind != kinds.end());
    found.push_back(static_cast<int>(kind - kinds.begin()));
    place += std::min<int64_t>(kind->features, tokens.end() - place);
  }
  return found;
}

void check_placeholders(const Dataset& dataset, const Sample& sample,
                        const std::vector<int64_t>& tokens_per_item) {
  const ItemCounts counts = count_items(sample.items);
  for (size_t kind = 0; kind < dataset.kinds().size(); ++kind) {
    const auto& [modality, token, features] = dataset.kinds()[kind];
    const bool is_audio = modality == Modality::Audio;
    const int64_t each = kind < tokens_per_item.size() ? tokens_per_item[kind] : 0;
    const int64_t items = counts.of(static_cast<int>(kind));
    const int64_t found =
        token < 0 ? 0 : std::count(sample.tokens.begin(), sample.tokens.end(), token);
    if (found == items * each) continue;
    throw DataError(dataset.describe() + ": sample " + std::to_string(sample.id) + " has " +
                    std::to_string(found) + (is_audio ? " audio" : " image") +
                    " placeholders (token " + std::to_string(token) + "), but its " +
                    std::to_string(items) + (is_audio ? " clips" : " images") + " make " +
                    std::to_string(items * each) + " features (" + std::to_string(each) +
                    " each); pack it with that many for each");
  }
}

}  // namespace zea
