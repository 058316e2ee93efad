// SPDX-License-Identifier: Apache-2.0
// Crops, tiles and squares of an image, resized, scaled and normalized.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.hpp"
#include "data/image.hpp"

namespace zea {
namespace {

/// Length of the longer edge when the shorter becomes `size`; cut down as CLIPImageProcessor does.
int64_t resized_edge(int64_t edge, int64_t shorter, int64_t size) {
  return static_cast<int64_t>(static_cast<double>(size * edge) / static_cast<double>(shorter));
}

/// The middle size x size pixels of the image with its shorter edge resized to `edge`.
Image resize_and_crop(const Image& image, int64_t edge, const ImageOptions& options) {
  const int64_t size = options.size, shorter = std::min(image.height, image.width);
  const int64_t height = resized_edge(image.height, shorter, edge);
  const int64_t width = resized_edge(image.width, shorter, edge);
  return resize(image, {height, width}, {(height - size) / 2, (width - size) / 2, {size, size}},
                options);
}

void normalize(const Image& image, const ImageOptions& options, float* target) {
  ZEA_ASSERT(options.mean.size() == 3 && options.std.size() == 3);
  const int64_t plane = image.height * image.width;
  for (int c = 0; c < 3; ++c) {
    const auto mean = static_cast<float>(options.mean[c]),
               deviation = static_cast<float>(options.std[c]);
    std::array<float, 256> value{};
    for (int i = 0; i < 256; ++i)
      value[i] = (static_cast<float>(i * options.scale) - mean) / deviation;
    for (int64_t i = 0; i < plane; ++i) target[c * plane + i] = value[image.pixels[3 * i + c]];
  }
}

/// As large as fits into `into`.
Image fitted(const Image& image, const ImageSize& into, const ImageOptions& options) {
  const auto scale = [](int64_t to, int64_t from) {
    return static_cast<double>(to) / static_cast<double>(from);
  };
  const auto scaled = [](int64_t edge, double by, int64_t most) {
    return std::min(static_cast<int64_t>(std::ceil(static_cast<double>(edge) * by)), most);
  };
  const double wide = scale(into.width, image.width), high = scale(into.height, image.height);
  ImageSize to = into;
  if (wide < high)
    to.height = scaled(image.height, wide, into.height);
  else
    to.width = scaled(image.width, high, into.width);
  return resize(image, to, options);
}

/// Pads an image to `size` with one color, with so many pixels above it and on its left.
Image padded(const Image& image, const ImageSize& size, const std::array<uint8_t, 3>& around,
             int64_t above, int64_t left) {
  Image all{size.height, size.width,
            std::vector<uint8_t>(static_cast<size_t>(3 * size.height * size.width))};
  for (size_t i = 0; i < all.pixels.size(); ++i) all.pixels[i] = around[i % 3];
  for (int64_t row = 0; row < image.height; ++row)
    std::copy_n(image.pixels.begin() + 3 * row * image.width, 3 * image.width,
                all.pixels.begin() + 3 * ((above + row) * size.width + left));
  return all;
}

/// Likewise all around; an odd pixel goes to the right and below.
Image in_the_middle(const Image& image, const ImageSize& size,
                    const std::array<uint8_t, 3>& around) {
  return padded(image, size, around, (size.height - image.height) / 2,
                (size.width - image.width) / 2);
}

/// Crops an image.
Image cut(const Image& image, int64_t top, int64_t left, const ImageSize& size) {
  Image part{size.height, size.width,
             std::vector<uint8_t>(static_cast<size_t>(3 * size.height * size.width))};
  for (int64_t row = 0; row < size.height; ++row)
    std::copy_n(image.pixels.begin() + 3 * ((top + row) * image.width + left), 3 * size.width,
                part.pixels.begin() + 3 * row * size.width);
  return part;
}

/// All of them, row by row. Returns where the next image goes.
float* normalize_tiles(const Image& canvas, const ImageOptions& options, const TileGrid& grid,
                       float* target) {
  const int64_t size = options.size;
  for (int64_t tile = 0; tile < grid.tiles(); ++tile, target += 3 * size * size)
    normalize(cut(canvas, tile / grid.wide * size, tile % grid.wide * size, {size, size}), options,
              target);
  return target;
}

}  // namespace

void preprocess_image(const Image& image, const ImageOptions& options, float* target) {
  ZEA_ASSERT(options.size > 0);
  const int64_t edge = options.shortest_edge > 0 ? options.shortest_edge : options.size;
  normalize(resize_and_crop(image, edge, options), options, target);
}

void preprocess_padded(const Image& image, const ImageOptions& options, float* target) {
  const int64_t side = std::max(image.height, image.width);
  check_dimensions("an image padded to a square", side, side, options.max_pixels);
  std::array<uint8_t, 3> around{};
  for (size_t c = 0; c < 3; ++c)
    around[c] = static_cast<uint8_t>(std::clamp(options.mean[c] * 255, 0.0, 255.0));
  preprocess_image(in_the_middle(image, {side, side}, around), options,
                   ImageSize{options.size, options.size}, target);
}

void preprocess_fitted(const Image& image, const ImageOptions& options, const TileGrid& grid,
                       float* target) {
  const int64_t size = options.size;
  preprocess_image(image, options, ImageSize{size, size}, target);
  const ImageSize all{grid.high * size, grid.wide * size};
  const Image canvas = in_the_middle(fitted(image, all, options), all, {});
  normalize_tiles(canvas, options, grid, target + 3 * size * size);
}

void preprocess_crops(const Image& image, const ImageOptions& options, const TileGrid& grid,
                      float* target) {
  const ImageSize to{options.size, options.size};
  preprocess_image(image, options, to, target);
  const int64_t width = (image.width + grid.wide - 1) / grid.wide;
  const int64_t height = (image.height + grid.high - 1) / grid.high;
  for (int64_t crop = 0; grid.tiles() > 1 && crop < grid.tiles(); ++crop) {
    target += 3 * to.height * to.width;
    const int64_t left = crop % grid.wide * width, top = crop / grid.wide * height;
    const ImageSize size{std::min(height, image.height - top), std::min(width, image.width - left)};
    preprocess_image(cut(image, top, left, size), options, to, target);
  }
}

void preprocess_tiles(const Image& image, const ImageOptions& options, const TileGrid& grid,
                      float* target) {
  const int64_t size = options.size;
  if (options.longest_side > 0) {
    ImageOptions of_whole = options;
    of_whole.longest_side = 0;
    const Image first =
        resize(image, stretched({image.height, image.width}, options.longest_side), options);
    return preprocess_tiles(resize(first, {grid.high * size, grid.wide * size}, options), of_whole,
                            grid, target);
  }
  const Image canvas = resize(image, {grid.high * size, grid.wide * size}, options);
  target = normalize_tiles(canvas, options, grid, target);
  if (grid.tiles() > 1) preprocess_image(image, options, ImageSize{size, size}, target);
}

void preprocess_image(const Image& image, const ImageOptions& options, const ImageSize& to,
                      float* target) {
  if (!options.padded) return normalize(resize(image, to, options), options, target);
  const ImageSize shown = options.padded->shrunk({image.height, image.width}, options.patch_size);
  normalize(padded(resize(image, shown, options), to, {}, 0, 0), options, target);
}

}  // namespace zea
