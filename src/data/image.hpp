// SPDX-License-Identifier: Apache-2.0
// Images from bytes to what a vision encoder takes, as transformers' image processors do it: to
// RGB, resize (antialiased, rounded to 8 bits), scale to 0..1, normalize. What is resized to what
// is the family's: the shortest edge and then a centre crop (CLIP), the whole image (SigLIP), its
// tiles or crops in addition (InternVL, Idefics3, Gemma 3), a grid that it fits into
// (LLaVA-NeXT).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "data/dataset.hpp"

namespace zea {

struct ImageOptions {
  int64_t size = 224;  ///< height and width of the result, where all have the same
  std::vector<double> mean = ImageColours().mean;
  std::vector<double> std = ImageColours().std;
  int64_t max_pixels = 100000000;  ///< refused before memory is taken
  /// Where images differ in size: each is made a whole number of patches wide and high.
  int64_t patch_size = 0;
  bool crops = true;          ///< to the middle; false: the whole image is made size x size
  int64_t shortest_edge = 0;  ///< that a cropped image has before; 0: size
  Resampling resampling = Resampling::Bicubic;
  bool by_torchvision = false;  ///< weights as torchvision rounds them; false: as PIL does
  double scale = ImageColours().scale;
  bool has_crops_beside = false;  ///< after the whole image, as the item's shape says
  bool has_tiles = false;         ///< of size x size each, as many as the item's shape says
  int64_t longest_side = 0;  ///< of an image before it becomes tiles (stretched()); 0: as it is
  std::optional<ImagesPadded> padded = {};  ///< black fills what the shrunk image leaves
};

/// 8-bit RGB, height x width x 3.
struct Image {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels;
};

/// Throws DataError unless 1 <= height * width <= max_pixels.
void check_dimensions(const char* what, int64_t height, int64_t width, int64_t max_pixels);

/// Throws DataError unless `bytes` are at least the `least` that such a picture takes. Decoders
/// call it before they allocate its pixels.
void check_held(const char* what, int64_t height, int64_t width, int64_t least, size_t bytes);

Image decode_jpeg(std::span<const uint8_t> bytes, int64_t max_pixels);
Image decode_png(std::span<const uint8_t> bytes, int64_t max_pixels);

/// JPEG (also grey and CMYK), PNG (any depth, palette, alpha dropped) or raw with 1 or 3 channels,
/// converted as PIL's convert("RGB") does. Throws DataError with the fault; the caller knows which
/// item it was.
Image decode_image(const Item& item, int64_t max_pixels);

/// (3, size, size), normalized, in `target` (3 * size * size values).
void preprocess_image(const Image& image, const ImageOptions& options, float* target);
/// The same of the tiles of an image that is made as large as all of them, row by row, and after
/// several of them of the whole image, of these where it is stretched: (tiles, 3, size, size).
void preprocess_tiles(const Image& image, const ImageOptions& options, const TileGrid& grid,
                      float* target);
/// The same of the whole image, and after it of crops of it.
void preprocess_crops(const Image& image, const ImageOptions& options, const TileGrid& grid,
                      float* target);
/// (3, size, size) of the image in the middle of a square of the mean colour.
void preprocess_padded(const Image& image, const ImageOptions& options, float* target);
/// The same of the whole image, made square, and of the tiles of a grid in whose middle it stands
/// with its shape kept, black around it: (1 + tiles, 3, size, size).
void preprocess_fitted(const Image& image, const ImageOptions& options, const TileGrid& grid,
                       float* target);
/// The same of the whole image: (3, height, width) as `to` says.
void preprocess_image(const Image& image, const ImageOptions& options, const ImageSize& to,
                      float* target);

/// Pixels of an image.
struct Window {
  int64_t top = 0, left = 0;
  ImageSize size;
};

/// Resizes an image to `to` and returns its window `part`. Only the window is computed: a crop of a
/// 1 x 10^8 image needs no more memory than that came with. With `options.by_torchvision` throws
/// DataError where more than `options.max_pixels` would be made on the way.
Image resize(const Image& image, const ImageSize& to, const Window& part,
             const ImageOptions& options);
/// All of it.
Image resize(const Image& image, const ImageSize& to, const ImageOptions& options);

}  // namespace zea
