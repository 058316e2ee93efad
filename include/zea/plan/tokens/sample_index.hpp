// SPDX-License-Identifier: Apache-2.0
// What a plan needs to know of a sample: counts from the data set's index, never contents.
#pragma once

#include <cstdint>
#include <string>

namespace zea {

/// Items of each modality.
struct ItemCounts {
  int64_t images = 0;
  int64_t clips = 0;  ///< of sound

  ItemCounts(int64_t image_count = 0, int64_t clip_count = 0)
      : images(image_count), clips(clip_count) {}
  /// Of the encoder `module`: "vision", "audio"; 0 of others.
  int64_t of(const std::string& module) const;
  int64_t all() const { return images + clips; }
  /// 1 of each modality that there are items of.
  ItemCounts kinds() const { return {images > 0, clips > 0}; }
  ItemCounts& operator+=(const ItemCounts& other);
  bool operator==(const ItemCounts&) const = default;
};

struct SampleIndex {
  int64_t tokens = 0;
  ItemCounts items = {};
  int64_t targets =
      0;  ///< tokens with loss, after the shift: a sample's first token is never a target
};

}  // namespace zea
