// SPDX-License-Identifier: Apache-2.0
// Assigns items to encoders: an item belongs to the encoder of its placeholder tokens.
#include <algorithm>

#include "core/error.hpp"
#include "data/audio.hpp"
#include "data/dataset.hpp"
#include "data/file_parts.hpp"

namespace zea {

MelKind mel_kind(const MelInput& input) {
  if (!input.subsampling) return MelKind::Whisper;
  return input.subsampling->has_norms ? MelKind::Usm : MelKind::Unpadded;
}

ItemList list_items(const std::vector<Item>& items) {
  ItemList list;
  for (const Item& item : items) list.add(item.kind, 1, item.shape);
  return list;
}

std::string item_name(const Item& item) {
  if (item.modality == Modality::Audio) return "clip";
  return item.frames > 0 ? "video" : "image";
}

Item frame_of(const Item& video, int64_t frame) {
  const auto index = static_cast<size_t>(frame);
  const int64_t begin = frame == 0 ? 0 : video.frame_ends.at(index - 1);
  Item image;
  image.raw = video.raw;
  image.height = video.height;
  image.width = video.width;
  image.channels = video.channels;
  image.bytes.assign(video.bytes.begin() + begin, video.bytes.begin() + video.frame_ends.at(index));
  return image;
}

void add_kind(std::vector<ItemKind>& kinds, const ItemKind& kind) {
  if (std::ranges::find(kinds, kind.modality, &ItemKind::modality) == kinds.end())
    kinds.push_back(kind);
}

std::vector<ItemKind> item_kinds(const ModelSpec& model) {
  std::vector<ItemKind> kinds;
  for (const EncoderSpec& encoder : model.encoders) {
    const bool varies = encoder.varies() || encoder.video_placeholder >= 0;
    kinds.push_back({encoder.modality(), static_cast<int32_t>(encoder.placeholder),
                     encoder.item_shape().features, varies ? std::optional(encoder) : std::nullopt,
                     static_cast<int32_t>(encoder.video_placeholder)});
  }
  return kinds;
}

ItemShape shape_of(const Item& item, const EncoderSpec& encoder, bool is_alone) {
  if (item.frames == 0 && !encoder.varies()) return encoder.item_shape();
  const bool is_clip = item.modality == Modality::Audio;
  if (is_clip ? item.samples == 0 : item.height == 0)
    throw DataError("an encoded " + item_name(item) +
                    (is_clip ? " without its length and rate" : " without its height and width") +
                    " (item_shape), of which the " + encoder.name +
                    " encoder makes as many features as they ask for; pack the data set with them");
  const ImageSize size{item.height, item.width};
  if (item.frames > 0) return encoder.video_shape(size, item.frames, item.frames_per_second);
  const auto* fitted = is_clip ? nullptr : encoder.patches().as<FittedTiles>();
  if (fitted && fitted->fits_alone && !is_alone) return encoder.padded_shape();
  if (!is_clip) return encoder.item_shape(size);
  const MelKind kind = mel_kind(encoder.mels());
  int64_t columns = mel_columns(item.samples, item.rate, kind);
  // Longer clips are cut before their columns are counted.
  if (kind == MelKind::Usm)
    columns = std::min(columns, usm_columns(kMelHop * encoder.mels().columns()));
  if (kind == MelKind::Unpadded && columns > encoder.mels().columns())
    throw DataError("a clip of " + std::to_string(item.samples) + " samples at " +
                    std::to_string(item.rate) + " Hz, longer than the " +
                    std::to_string(encoder.mels().columns() * kMelHop / kMelRate) + " s of the " +
                    encoder.name +
                    " encoder (chunk_length, or n_samples / 16000, of its feature extractor); cut "
                    "it before packing");
  const ItemShape shape = encoder.clip_shape(columns);
  if (shape.features == 0)
    throw DataError("a clip of " + std::to_string(item.samples) + " samples at " +
                    std::to_string(item.rate) + " Hz, too short for a feature of the " +
                    encoder.name + " encoder");
  return shape;
}

/// Items come in the order of their placeholders, so each begins after those of the one before.
void assign_kinds(const std::vector<int32_t>& tokens, const std::vector<ItemKind>& kinds,
                  std::vector<Item>& items) {
  auto next = tokens.begin();
  const bool is_alone = std::ranges::count_if(items, [](const Item& item) {
                          return item.modality == Modality::Image && item.frames == 0;
                        }) == 1;
  for (Item& item : items) {
    const auto has_modality = [&](const ItemKind& kind) { return kind.modality == item.modality; };
    const auto kind_at = [&](int32_t token) {
      return std::ranges::find_if(kinds, [&](const ItemKind& kind) {
        return has_modality(kind) && kind.token_of(item) == token;
      });
    };
    next = std::find_if(next, tokens.end(),
                        [&](int32_t token) { return kind_at(token) != kinds.end(); });
    // An item without placeholders is refused where its features are placed.
    const auto kind =
        next == tokens.end() ? std::ranges::find_if(kinds, has_modality) : kind_at(*next);
    ZEA_ASSERT(kind != kinds.end());
    item.kind = static_cast<int>(kind - kinds.begin());
    if (item.frames > 0 && kind->video_token < 0)
      throw DataError("a video, for which the model has no placeholder");
    if (kind->varied) item.shape = shape_of(item, *kind->varied, is_alone);
    // Rows of an image may end with tokens of text.
    int64_t features = kind->varied ? item.shape.features : kind->features;
    for (; features > 0 && next != tokens.end(); ++next) features -= *next == kind->token_of(item);
  }
}

void detail::assign_kinds(const std::vector<ItemKind>& kinds, std::vector<Item>& items,
                          const std::function<std::vector<int32_t>()>& tokens) {
  const auto needs_tokens = [&](const Item& item) {
    return item.frames > 0 || std::ranges::count(kinds, item.modality, &ItemKind::modality) > 1;
  };
  zea::assign_kinds(std::ranges::any_of(items, needs_tokens) ? tokens() : std::vector<int32_t>{},
                    kinds, items);
}

}  // namespace zea
