// SPDX-License-Identifier: Apache-2.0
// What becomes of an item: the size of an image, its patches, and the features of these.
#include "zea/plan/model/module_spec.hpp"

#include <algorithm>
#include <cmath>

#include "zea/core/error.hpp"

namespace zea {

ImageSize PatchInput::resized(const ImageSize& image) const {
  if (!any_size) return {image_size, image_size};
  ZEA_ASSERT(!class_token);
  const int64_t step = patch_size * block;
  const double scale = std::min(1.0, static_cast<double>(image_size) /
                                         static_cast<double>(std::max(image.height, image.width)));
  const auto whole_blocks = [&](int64_t pixels) {
    const int64_t blocks =
        std::lround(scale * static_cast<double>(pixels) / static_cast<double>(step));
    return step * std::clamp<int64_t>(blocks, 1, image_size / step);
  };
  return {whole_blocks(image.height), whole_blocks(image.width)};
}

int64_t PatchInput::position(int64_t token, int64_t patches_wide) const {
  const int64_t patch = token - class_tokens();
  if (patch < 0) return token;
  const int64_t square = patch / (block * block), inside = patch % (block * block);
  const int64_t squares_wide = patches_wide / block;
  const int64_t row = square / squares_wide * block + inside / block;
  const int64_t column = square % squares_wide * block + inside % block;
  return class_tokens() + row * side() + column;
}

ItemShape EncoderSpec::item_shape() const {
  if (modality() == Modality::Image)
    return item_shape(ImageSize{patches().image_size, patches().image_size});
  return {.tokens = mels().positions, .features = mels().positions};
}

ItemShape EncoderSpec::item_shape(const ImageSize& image) const {
  const auto [height, width] = patches().resized(image);
  const int64_t patch = patches().patch_size, first = drops_first_token ? 1 : 0;
  const int64_t tokens = patches().class_tokens() + height / patch * (width / patch);
  return {.tokens = tokens,
          .features = (tokens - first) / projector.merge,
          .first = first,
          .merge = projector.merge,
          .width = width / patch};
}

}  // namespace zea
