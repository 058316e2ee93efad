// SPDX-License-Identifier: Apache-2.0
#include "layout/token_positions.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace zea {
namespace {

/// Appends the positions of an image's features, or of so many moments of a video; returns where
/// what follows goes on.
int64_t append_image(std::vector<TokenPosition>& positions, int64_t first, const ItemShape& image,
                     int64_t moments) {
  const int64_t all = image.frames > 0 ? image.tile_features() : image.features;
  const int64_t wide = image.columns(), high = all / wide;
  for (int64_t moment = 0; moment < moments; ++moment)
    for (int64_t row = 0; row < high; ++row)
      for (int64_t column = 0; column < wide; ++column)
        positions.push_back({first + moment * image.time_step, first + row, first + column});
  return first + std::max(high, wide);
}

/// The items of an encoder that are passed, and of the next one the moments.
struct Passed {
  size_t items = 0;
  int64_t moments = 0;
};

}  // namespace

std::vector<TokenPosition> grid_positions(const std::vector<MaskWord>& words,
                                          const std::vector<std::vector<ItemShape>>& items) {
  std::vector<TokenPosition> positions;
  std::vector<Passed> passed(items.size());
  int64_t next = 0;
  for (size_t token = 0; token < words.size(); token = positions.size()) {
    const MaskWord word = words[token];
    if (token > 0 && word_sample(word) != word_sample(words[token - 1])) next = 0;
    if (word_modality(word) != kModalityText) {
      const auto encoder = static_cast<size_t>(word_encoder(word));
      auto& [before, moments] = passed[encoder];
      const ItemShape& item = items[encoder].at(before);
      const int64_t here = item.frames == 0 || item.has_text_between ? 1 : item.tiles;
      moments += here;
      if (item.frames == 0 || moments == item.tiles) {
        ++before;
        moments = 0;
      }
      if (item.width > 0) {
        next = append_image(positions, next, item, here);
        continue;
      }
      ZEA_ASSERT(item.features > 0);
      for (int64_t i = 1; i < item.features; ++i, ++next) positions.push_back({next, next, next});
    }
    positions.push_back({next, next, next});
    ++next;
  }
  ZEA_ASSERT(positions.size() == words.size());
  return positions;
}

}  // namespace zea
