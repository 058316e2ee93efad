// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "zea/data/image.hpp"

namespace zea {

/// Pixels of an image.
struct Window {
  int64_t top = 0, left = 0;
  ImageSize size;
};

/// What `part` shows of an image that is made as large as `to`. Only the pixels of `part` are
/// computed: a 1 x 10^8 image costs no more memory than it came with. With
/// `options.by_torchvision` throws DataError where `to` has more than `options.max_pixels`.
Image resize(const Image& image, const ImageSize& to, const Window& part,
             const ImageOptions& options);
/// All of it.
Image resize(const Image& image, const ImageSize& to, const ImageOptions& options);

}  // namespace zea
