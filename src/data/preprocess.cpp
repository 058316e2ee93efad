// SPDX-License-Identifier: Apache-2.0
// Resize, crop, scale and normalise, equal to CLIPImageProcessor's PIL back end bit for bit:
// bicubic (a = -0.5) or bilinear with antialiasing, weights in 22-bit fixed point, horizontal then
// vertical, each rounded to 8 bits. Only the pixels that the crop keeps are computed, so a 1 x 10^8
// image costs no more memory than it came with.
#include <algorithm>
#include <array>
#include <cmath>

#include "decode.hpp"
#include "zea/core/error.hpp"
#include "zea/data/image.hpp"

namespace zea {
namespace {

constexpr int kFractionBits =
    22;  ///< 32 minus 8 of the pixel minus 2 of headroom for weights outside 0..1

/// Source pixels [first, first + weights.size()) that make one target pixel.
struct Taps {
  int64_t first = 0;
  std::vector<int32_t> weights;  ///< fixed point
};

/// Target pixels [first, first + count) of a row of `source_size` pixels resized to `target_size`.
std::vector<Taps> make_taps(int64_t source_size, int64_t target_size, int64_t first, int64_t count,
                            Resampling resampling) {
  std::vector<Taps> taps;
  for (int64_t i = first; i < first + count; ++i) {
    const SourceWeights exact = source_weights(i, source_size, target_size, resampling);
    Taps& rounded = taps.emplace_back(Taps{exact.first, {}});
    for (const double weight : exact.weights)
      rounded.weights.push_back(static_cast<int32_t>(std::round(weight * (1 << kFractionBits))));
  }
  return taps;
}

uint8_t round_to_8_bits(int64_t sum) {
  return static_cast<uint8_t>(std::clamp<int64_t>(sum >> kFractionBits, 0, 255));
}

/// One RGB pixel from taps over `source`, whose pixels are `stride` bytes apart.
void apply_taps(const Taps& taps, const uint8_t* source, int64_t stride, uint8_t* target) {
  constexpr int64_t kHalf = int64_t{1} << (kFractionBits - 1);
  int64_t sum[3] = {kHalf, kHalf, kHalf};
  for (size_t i = 0; i < taps.weights.size(); ++i) {
    const uint8_t* pixel = source + (taps.first + static_cast<int64_t>(i)) * stride;
    for (int c = 0; c < 3; ++c) sum[c] += int64_t{taps.weights[i]} * pixel[c];
  }
  for (int c = 0; c < 3; ++c) target[c] = round_to_8_bits(sum[c]);
}

/// Columns `taps` of rows [first_row, first_row + rows).
Image resize_columns(const Image& image, const std::vector<Taps>& taps, int64_t first_row,
                     int64_t rows) {
  const auto width = static_cast<int64_t>(taps.size());
  Image result{rows, width, std::vector<uint8_t>(static_cast<size_t>(3 * rows * width))};
  for (int64_t y = 0; y < rows; ++y) {
    const uint8_t* row = image.pixels.data() + 3 * (first_row + y) * image.width;
    for (int64_t x = 0; x < width; ++x)
      apply_taps(taps[static_cast<size_t>(x)], row, 3,
                 &result.pixels[static_cast<size_t>(3 * (y * width + x))]);
  }
  return result;
}

/// Rows `taps`, whose sources are numbered from `first_row` of the whole image.
Image resize_rows(const Image& image, const std::vector<Taps>& taps, int64_t first_row) {
  const auto height = static_cast<int64_t>(taps.size());
  Image result{height, image.width,
               std::vector<uint8_t>(static_cast<size_t>(3 * height * image.width))};
  for (int64_t y = 0; y < height; ++y) {
    Taps row = taps[static_cast<size_t>(y)];
    row.first -= first_row;
    for (int64_t x = 0; x < image.width; ++x)
      apply_taps(row, image.pixels.data() + 3 * x, 3 * image.width,
                 &result.pixels[static_cast<size_t>(3 * (y * image.width + x))]);
  }
  return result;
}

/// Length of the longer edge when the shorter becomes `size`; cut down as CLIPImageProcessor does.
int64_t resized_edge(int64_t edge, int64_t shorter, int64_t size) {
  return static_cast<int64_t>(static_cast<double>(size * edge) / static_cast<double>(shorter));
}

/// Pixels of an image of another size, resized: some of its columns and rows.
Image resize(const Image& image, const std::vector<Taps>& columns, const std::vector<Taps>& rows) {
  const int64_t first_row = rows.front().first;
  const int64_t end_row = rows.back().first + static_cast<int64_t>(rows.back().weights.size());
  return resize_rows(resize_columns(image, columns, first_row, end_row - first_row), rows,
                     first_row);
}

Image resize(const Image& image, const ImageSize& to, const ImageOptions& options) {
  return resize(image, make_taps(image.width, to.width, 0, to.width, options.resampling),
                make_taps(image.height, to.height, 0, to.height, options.resampling));
}

/// The middle size x size pixels of the image with its shorter edge resized to `edge`.
Image resize_and_crop(const Image& image, int64_t size, int64_t edge, Resampling resampling) {
  const int64_t shorter = std::min(image.height, image.width);
  const int64_t height = resized_edge(image.height, shorter, edge);
  const int64_t width = resized_edge(image.width, shorter, edge);
  return resize(image, make_taps(image.width, width, (width - size) / 2, size, resampling),
                make_taps(image.height, height, (height - size) / 2, size, resampling));
}

void normalise(const Image& image, const ImageOptions& options, float* target) {
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
Image fitted(const Image& image, const ImageSize& into, Resampling resampling) {
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
  return resize(image, make_taps(image.width, to.width, 0, to.width, resampling),
                make_taps(image.height, to.height, 0, to.height, resampling));
}

/// Of an image of one colour; an odd pixel more is to the right and below.
Image in_the_middle(const Image& image, const ImageSize& size,
                    const std::array<uint8_t, 3>& around) {
  Image all{size.height, size.width,
            std::vector<uint8_t>(static_cast<size_t>(3 * size.height * size.width))};
  for (size_t i = 0; i < all.pixels.size(); ++i) all.pixels[i] = around[i % 3];
  const int64_t above = (size.height - image.height) / 2, left = (size.width - image.width) / 2;
  for (int64_t row = 0; row < image.height; ++row)
    std::copy_n(image.pixels.begin() + 3 * row * image.width, 3 * image.width,
                all.pixels.begin() + 3 * ((above + row) * size.width + left));
  return all;
}

/// Of an image.
Image cut(const Image& image, int64_t top, int64_t left, const ImageSize& size) {
  Image part{size.height, size.width,
             std::vector<uint8_t>(static_cast<size_t>(3 * size.height * size.width))};
  for (int64_t row = 0; row < size.height; ++row)
    std::copy_n(image.pixels.begin() + 3 * ((top + row) * image.width + left), 3 * size.width,
                part.pixels.begin() + 3 * row * size.width);
  return part;
}

}  // namespace

void preprocess_image(const Image& image, const ImageOptions& options, float* target) {
  ZEA_ASSERT(options.size > 0);
  const int64_t edge = options.shortest_edge > 0 ? options.shortest_edge : options.size;
  normalise(resize_and_crop(image, options.size, edge, options.resampling), options, target);
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
  const Image canvas = in_the_middle(fitted(image, all, options.resampling), all, {});
  for (int64_t tile = 0; tile < grid.tiles(); ++tile) {
    target += 3 * size * size;
    normalise(cut(canvas, tile / grid.wide * size, tile % grid.wide * size, {size, size}), options,
              target);
  }
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
  for (int64_t tile = 0; tile < grid.tiles(); ++tile, target += 3 * size * size) {
    const int64_t column = tile % grid.wide * size, row = tile / grid.wide * size;
    normalise(
        resize(image, make_taps(image.width, grid.wide * size, column, size, options.resampling),
               make_taps(image.height, grid.high * size, row, size, options.resampling)),
        options, target);
  }
  if (grid.tiles() > 1) preprocess_image(image, options, ImageSize{size, size}, target);
}

void preprocess_image(const Image& image, const ImageOptions& options, const ImageSize& to,
                      float* target) {
  normalise(resize(image, to, options), options, target);
}

}  // namespace zea
