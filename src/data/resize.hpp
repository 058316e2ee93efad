// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/image.hpp"

namespace zea {

/// Pixels of an image.
struct Window {
  int64_t top = 0, left = 0;
  ImageSize size;
};

/// What `part` shows of an image that is made as large as `to`. Only its pixels are computed: a
/// crop of a 1 x 10^8 image costs no more memory than that came with. With `options.by_torchvision`
/// throws DataError where that would make more than `options.max_pixels` on its way.
Image resize(const Image& image, const ImageSize& to, const Window& part,
             const ImageOptions& options);
/// All of it.
Image resize(const Image& image, const ImageSize& to, const ImageOptions& options);

}  // namespace zea
