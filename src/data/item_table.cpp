// SPDX-License-Identifier: Apache-2.0
#include "data/file_parts.hpp"

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/text.hpp"

namespace zea::detail {

ItemTable::ItemTable(const H5File& file)
    : where_(file.path()),
      version_(file.text_attribute("version").value_or("")),
      samples_(file.read_all<int64_t>("sample_item_offsets")),
      offsets_(file.read_all<int64_t>("item_offsets")),
      shape_(read_optional<int32_t>(file, "item_shape")),
      modality_(read_optional<uint8_t>(file, "item_modality")),
      rate_(read_optional<int32_t>(file, "item_rate")),
      frames_(read_optional<int32_t>(file, "item_frames")),
      frames_per_second_(read_optional<double>(file, "item_frames_per_second")) {}

void ItemTable::refuse(const std::string& fault) const {
  throw DataError(where_ + ": " + fault);
}

std::vector<Item> ItemTable::heads(size_t sample) const {
  std::vector<Item> items;
  for (auto item = samples_[sample]; item < samples_[sample + 1];
       item += std::max<int64_t>(1, items.back().frames))
    items.push_back(head(static_cast<size_t>(item)));
  return items;
}

std::vector<int64_t> ItemTable::byte_offsets(size_t sample) const {
  std::vector<int64_t> offsets;
  for (auto item = static_cast<size_t>(samples_[sample]);
       item < static_cast<size_t>(samples_[sample + 1]); ++item)
    if (frames(item) >= 0) offsets.push_back(offsets_[item]);
  offsets.push_back(offsets_[static_cast<size_t>(samples_[sample + 1])]);
  return offsets;
}

void ItemTable::check(int64_t bytes) const {
  check_offsets(where_, "item_offsets", offsets_, bytes);
  check_offsets(where_, "sample_item_offsets", samples_, static_cast<int64_t>(offsets_.size()) - 1);
  const size_t items = offsets_.size() - 1;
  if (shape_.size() != 3 * items)
    refuse("item_shape has " + std::to_string(shape_.size()) + " values, must have 3 for each of " +
           std::to_string(items) + " items");
  check_modalities();
  check_frames();
  for (size_t i = 0; i < items; ++i) is_clip(i) ? check_clip(i) : check_image_shape(i);
}

void ItemTable::check_image_shape(size_t i) const {
  const int64_t height = shape_[3 * i], width = shape_[3 * i + 1];
  const int64_t channels = shape_[3 * i + 2], bytes = offsets_[i + 1] - offsets_[i];
  const std::string what = "item " + std::to_string(i) + " has shape (" + std::to_string(height) +
                           ", " + std::to_string(width) + ", " + std::to_string(channels) + ")";
  if (!rate_.empty() && rate_[i] != 0 && frames(i) == 0)
    refuse("item " + std::to_string(i) + " is an image and has an item_rate of " +
           std::to_string(rate_[i]) + ", must have 0");
  if (height == 0 && width == 0 && channels == 0) return;
  if (height <= 0 || width <= 0 || (channels != 0 && channels != 1 && channels != 3))
    refuse(what +
           "; allowed are height and width of 1 or more with 1 or 3 channels, or zeros (encoded; "
           "with its height and width, or without)");
  if (channels == 0) return;
  if (bytes % channels != 0 || bytes / channels % width != 0 || bytes / channels / width != height)
    refuse(what + " but " + std::to_string(bytes) + " bytes");
}

/// From version 2 on files say of each item what it is.
void ItemTable::check_modalities() const {
  const size_t items = offsets_.size() - 1;
  const size_t expected = version_ == "1" ? 0 : items;
  if (modality_.size() != expected || rate_.size() != expected)
    refuse("item_modality has " + std::to_string(modality_.size()) + " entries and item_rate has " +
           std::to_string(rate_.size()) + " for " + std::to_string(items) +
           " items; from version 2 on both have one for each, in version 1 none");
  for (size_t i = 0; i < modality_.size(); ++i)
    if (modality_[i] > static_cast<uint8_t>(Modality::Audio))
      refuse("item " + std::to_string(i) + " has item_modality " + std::to_string(modality_[i]) +
             "; allowed are 0 (image) and 1 (sound)");
}

/// In version 3 an image that begins a video tells how many frames it has, itself and images after
/// it of the same sample, which have -1.
void ItemTable::check_frames() const {
  const size_t items = offsets_.size() - 1;
  if (frames_.size() != (version_ < "3" ? 0 : items))
    refuse("item_frames has " + std::to_string(frames_.size()) + " entries for " +
           std::to_string(items) + " items; in version 3 it has one for each, before it none");
  if (!frames_per_second_.empty() && frames_per_second_.size() != frames_.size())
    refuse("item_frames_per_second has " + std::to_string(frames_per_second_.size()) +
           " entries for " + std::to_string(items) +
           " items; in version 3 it has one for each or none, before it none");
  for (size_t sample = 0; !frames_.empty() && sample + 1 < samples_.size(); ++sample) {
    const auto end = static_cast<size_t>(samples_[sample + 1]);
    auto item = static_cast<size_t>(samples_[sample]);
    while (item < end) {
      const auto frames = static_cast<size_t>(std::max(1, frames_[item]));
      if (frames_[item] < 0 || frames > end - item || (is_clip(item) && frames_[item] > 0))
        refuse("item " + std::to_string(item) + " has item_frames " +
               std::to_string(frames_[item]) +
               "; allowed are 0, or of an image that begins a video its frames, of which the "
               "others follow it in the sample with -1");
      if (frames_[item] > 0) check_video(item, item + frames);
      item += frames;
    }
  }
}

void ItemTable::check_video(size_t first, size_t end) const {
  for (size_t frame = first; frame < end; ++frame) {
    const bool is_alike =
        std::equal(&shape_[3 * first], &shape_[3 * first] + 3, &shape_[3 * frame]);
    const bool has_begun = frame == first || frames_[frame] == -1;
    if (!has_begun || !is_alike || is_clip(frame) || rate_[frame] != rate_[first] ||
        rate_[frame] < 0)
      refuse("item " + std::to_string(frame) + " is a frame of the video that begins with item " +
             std::to_string(first) +
             "; it must be an image of the same item_shape and item_rate (0 or more) with "
             "item_frames -1");
    if (frames_per_second_.empty()) continue;
    // item_rate is rounded to whole frames per 1000 seconds.
    const double exact = frames_per_second_[frame];
    const bool is_rate = exact == 0 || exact >= 0.001;
    if (!is_rate || !(std::abs(1000 * exact - rate_[frame]) < 0.501))
      refuse("item " + std::to_string(frame) + " has item_frames_per_second " +
             formatted("%g", exact) + ", but item_rate is " + std::to_string(rate_[frame]) +
             " frames per 1000 seconds; write both from the same frame rate of 0.001 or more, or "
             "0 where it is not known");
  }
}

/// Raw sound is int16; of encoded sound the shape may tell samples and rate.
void ItemTable::check_clip(size_t i) const {
  const std::string what = "item " + std::to_string(i) + ", a clip of sound,";
  const int64_t samples = shape_[3 * i], shape_rate = shape_[3 * i + 1];
  const int64_t rate = rate_[i], bytes = offsets_[i + 1] - offsets_[i];
  const bool is_known = rate == 0 && samples > 0 && shape_rate > 0;
  if (shape_[3 * i + 2] != 0 || (!is_known && (samples != 0 || shape_rate != 0)))
    refuse(what +
           " has an item_shape; it must be zeros, or of an encoded one its samples, their rate "
           "and 0");
  if (rate < 0)
    refuse(what + " has an item_rate of " + std::to_string(rate) + ", must be 0 or more");
  if (rate > 0 && bytes % 2 != 0)
    refuse(what + " has " + std::to_string(bytes) + " bytes, which are no samples of 2 bytes");
}

Item ItemTable::head(size_t i) const {
  Item item;
  item.modality = modality(i);
  const int64_t first = shape_[3 * i], second = shape_[3 * i + 1];
  if (is_clip(i)) {
    item.raw = rate_[i] > 0;
    item.rate = item.raw ? rate_[i] : second;
    item.samples = item.raw ? (offsets_[i + 1] - offsets_[i]) / 2 : first;
    return item;
  }
  item.height = first;
  item.width = second;
  item.channels = shape_[3 * i + 2];
  item.raw = item.channels > 0;
  item.frames = frames(i);
  if (item.frames == 0) return item;
  item.rate = rate_[i];
  item.frames_per_second =
      frames_per_second_.empty() ? static_cast<double>(item.rate) / 1000 : frames_per_second_[i];
  for (int64_t frame = 1; frame <= item.frames; ++frame)
    item.frame_ends.push_back(offsets_[i + static_cast<size_t>(frame)] - offsets_[i]);
  return item;
}

}  // namespace zea::detail
