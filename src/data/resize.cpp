// SPDX-License-Identifier: Apache-2.0
// Equal bit for bit to Pillow 13: antialiased, weights in 22-bit fixed point, columns and then
// rows, or rows first where these become fewer by much, each rounded to 8 bits; or to torchvision,
// whose weights have 16 bits, and which makes columns first.
#include "data/image.hpp"

#include <algorithm>
#include <cmath>

namespace zea {
namespace {

constexpr int kPilBits =
    22;  ///< 32 minus 8 of the pixel minus 2 of headroom for weights outside 0..1
constexpr int kMostTorchvisionBits = 22;

/// Source pixels [first, first + weights.size()) that make one target pixel.
struct Taps {
  int64_t first = 0;
  std::vector<int32_t> weights;  ///< fixed point
};

/// Some target pixels of a row, or of a column.
struct AxisTaps {
  int bits = kPilBits;  ///< of the fraction of a weight
  std::vector<Taps> taps;
};

/// Pixels [first, first + count) of a row.
struct Range {
  int64_t first = 0, count = 0;
};

Range sources(const AxisTaps& axis) {
  const int64_t first = axis.taps.front().first;
  return {first, axis.taps.back().first + std::ssize(axis.taps.back().weights) - first};
}

/// As many as let the largest weight of all target pixels keep within a signed 16-bit number, as
/// torch's antialiased interpolation of bytes has them.
int torchvision_bits(int64_t source_size, int64_t target_size, Resampling resampling) {
  double largest = 0;
  for (int64_t i = 0; i < target_size; ++i)
    for (const double weight : source_weights(i, source_size, target_size, resampling).weights)
      largest = std::max(largest, weight);
  const auto fits = [&](int bits) { return std::lround(largest * (1 << bits)) < (1 << 15); };
  int bits = 0;
  while (bits < kMostTorchvisionBits && fits(bits + 1)) ++bits;
  return bits;
}

/// Target pixels of a row of `source_size` pixels resized to `target_size`.
AxisTaps make_axis(int64_t source_size, int64_t target_size, const Range& targets,
                   const ImageOptions& options) {
  AxisTaps axis;
  if (options.by_torchvision)
    axis.bits = torchvision_bits(source_size, target_size, options.resampling);
  for (int64_t i = targets.first; i < targets.first + targets.count; ++i) {
    const SourceWeights exact = source_weights(i, source_size, target_size, options.resampling);
    Taps& rounded = axis.taps.emplace_back(Taps{exact.first, {}});
    for (const double weight : exact.weights)
      rounded.weights.push_back(static_cast<int32_t>(std::round(weight * (1 << axis.bits))));
  }
  return axis;
}

/// One RGB pixel from taps over `source`, whose pixels are `stride` bytes apart.
void apply_taps(const Taps& taps, int bits, const uint8_t* source, int64_t stride,
                uint8_t* target) {
  const int64_t half = int64_t{1} << (bits - 1);
  int64_t sum[3] = {half, half, half};
  for (size_t i = 0; i < taps.weights.size(); ++i) {
    const uint8_t* pixel = source + static_cast<int64_t>(i) * stride;
    for (int c = 0; c < 3; ++c) sum[c] += int64_t{taps.weights[i]} * pixel[c];
  }
  for (int c = 0; c < 3; ++c)
    target[c] = static_cast<uint8_t>(std::clamp<int64_t>(sum[c] >> bits, 0, 255));
}

Image make_image(int64_t height, int64_t width) {
  return {height, width, std::vector<uint8_t>(static_cast<size_t>(3 * height * width))};
}

/// Resizes rows along their columns; the image's first column is column `first_column` of the taps.
Image resize_columns(const Image& image, const AxisTaps& columns, const Range& rows,
                     int64_t first_column) {
  Image result = make_image(rows.count, std::ssize(columns.taps));
  uint8_t* target = result.pixels.data();
  for (int64_t y = 0; y < rows.count; ++y) {
    const uint8_t* row = image.pixels.data() + 3 * (rows.first + y) * image.width;
    for (const Taps& taps : columns.taps) {
      apply_taps(taps, columns.bits, row + 3 * (taps.first - first_column), 3, target);
      target += 3;
    }
  }
  return result;
}

/// Resizes columns along their rows; the image's first row is row `first_row` of the taps.
Image resize_rows(const Image& image, const AxisTaps& rows, const Range& columns,
                  int64_t first_row) {
  Image result = make_image(std::ssize(rows.taps), columns.count);
  uint8_t* target = result.pixels.data();
  for (const Taps& taps : rows.taps) {
    const uint8_t* row = image.pixels.data() + 3 * (taps.first - first_row) * image.width;
    for (int64_t x = 0; x < columns.count; ++x, target += 3)
      apply_taps(taps, rows.bits, row + 3 * (columns.first + x), 3 * image.width, target);
  }
  return result;
}

/// It makes all of an image, and of a tall one more by columns than it has before or behind.
void check_torchvision(const Image& image, const ImageSize& to, int64_t max_pixels) {
  check_dimensions("image resized by columns, as torchvision does it", image.height, to.width,
                   max_pixels);
  check_dimensions("image resized as torchvision does it", to.height, to.width, max_pixels);
}

/// Pillow 13 does so: no pass makes more than there is before or behind both.
bool takes_rows_first(const Image& image, const ImageSize& to, const ImageOptions& options) {
  const int64_t fewer_rows = image.height - to.height, fewer_columns = image.width - to.width;
  return !options.by_torchvision && fewer_rows > 0 && fewer_rows > 2 * fewer_columns;
}

}  // namespace

Image resize(const Image& image, const ImageSize& to, const Window& part,
             const ImageOptions& options) {
  if (options.by_torchvision) check_torchvision(image, to, options.max_pixels);
  const AxisTaps columns = make_axis(image.width, to.width, {part.left, part.size.width}, options);
  const AxisTaps rows = make_axis(image.height, to.height, {part.top, part.size.height}, options);
  const Range from_columns = sources(columns), from_rows = sources(rows);
  if (takes_rows_first(image, to, options))
    return resize_columns(resize_rows(image, rows, from_columns, 0), columns, {0, part.size.height},
                          from_columns.first);
  return resize_rows(resize_columns(image, columns, from_rows, 0), rows, {0, part.size.width},
                     from_rows.first);
}

Image resize(const Image& image, const ImageSize& to, const ImageOptions& options) {
  return resize(image, to, {0, 0, to}, options);
}

}  // namespace zea
