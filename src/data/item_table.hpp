// SPDX-License-Identifier: Apache-2.0
// What a data set's file says of its items: whose they are, what they are, where their bytes lie.
#pragma once

#include <string>
#include <vector>

#include "data/dataset.hpp"
#include "h5/h5.hpp"

namespace zea::detail {

/// A dataset that may be absent or have no elements.
template <class T>
std::vector<T> read_optional(const H5File& file, const std::string& name) {
  if (!file.has(name) || num_elements(file.info(name).shape) == 0) return {};
  return file.read_all<T>(name);
}

class ItemTable {
 public:
  explicit ItemTable(const H5File& file);
  /// Throws DataError naming the item whose entries contradict each other, or leave `bytes`.
  void check(int64_t bytes) const;
  /// The same where the bytes lie in other files.
  void check() const { check(offsets_.empty() ? 0 : offsets_.back()); }
  size_t samples() const { return samples_.size() - 1; }
  /// Without their bytes; a video is one item.
  std::vector<Item> heads(size_t sample) const;
  /// Where the bytes of each of them begin, and behind them where those of the last one end.
  std::vector<int64_t> byte_offsets(size_t sample) const;

 private:
  Item head(size_t item) const;
  void check_modalities() const;
  void check_image_shape(size_t item) const;
  void check_clip(size_t item) const;
  void check_frames() const;
  void check_video(size_t first, size_t end) const;
  Modality modality(size_t item) const {
    return modality_.empty() ? Modality::Image : static_cast<Modality>(modality_[item]);
  }
  bool is_clip(size_t item) const { return modality(item) == Modality::Audio; }
  int64_t frames(size_t item) const { return frames_.empty() ? 0 : frames_[item]; }
  [[noreturn]] void refuse(const std::string& fault) const;

  std::string where_, version_;
  std::vector<int64_t> samples_;   ///< (samples + 1): the first item of each
  std::vector<int64_t> offsets_;   ///< (items + 1): of their bytes
  std::vector<int32_t> shape_;     ///< (items, 3)
  std::vector<uint8_t> modality_;  ///< (items); empty in version 1: all are images
  std::vector<int32_t> rate_;      ///< (items); empty in version 1
  std::vector<int32_t> frames_;    ///< (items); empty before version 3
};

}  // namespace zea::detail
