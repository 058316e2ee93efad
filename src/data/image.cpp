// SPDX-License-Identifier: Apache-2.0
// Chooses the decoder of an image by its first bytes, and converts raw images.
#include "data/image.hpp"

#include <array>
#include <cstring>

#include "core/error.hpp"

namespace zea {
namespace {

constexpr std::array<uint8_t, 3> kJpegMagic{0xff, 0xd8, 0xff};
constexpr std::array<uint8_t, 8> kPngMagic{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

template <size_t n>
bool starts_with(const std::vector<uint8_t>& bytes, const std::array<uint8_t, n>& magic) {
  return bytes.size() >= n && std::memcmp(bytes.data(), magic.data(), n) == 0;
}

std::string picture_text(const char* what, int64_t height, int64_t width) {
  return std::string(what) + " of " + std::to_string(height) + " x " + std::to_string(width) +
         " pixels";
}

Image image_of_raw(const Item& item, int64_t max_pixels) {
  check_dimensions("raw image", item.height, item.width, max_pixels);
  const int64_t pixels = item.height * item.width;
  if (item.channels != 1 && item.channels != 3)
    throw DataError("raw image of " + std::to_string(item.channels) +
                    " channels; allowed are 1 and 3");
  if (static_cast<int64_t>(item.bytes.size()) != pixels * item.channels)
    throw DataError("raw image of " + std::to_string(item.height) + " x " +
                    std::to_string(item.width) + " x " + std::to_string(item.channels) + " has " +
                    std::to_string(item.bytes.size()) + " bytes");
  Image image{item.height, item.width, item.bytes};
  if (item.channels == 1) {
    image.pixels.resize(static_cast<size_t>(3 * pixels));
    for (size_t i = 0; i < item.bytes.size(); ++i)
      std::memset(&image.pixels[3 * i], item.bytes[i], 3);
  }
  return image;
}

}  // namespace

void check_dimensions(const char* what, int64_t height, int64_t width, int64_t max_pixels) {
  const std::string found = picture_text(what, height, width);
  if (height <= 0 || width <= 0) throw DataError(found);
  if (height > max_pixels / width)
    throw DataError(found + ", more than data.max_image_pixels = " + std::to_string(max_pixels));
}

void check_held(const char* what, int64_t height, int64_t width, int64_t least, size_t bytes) {
  if (static_cast<int64_t>(bytes) < least)
    throw DataError(picture_text(what, height, width) + " in " + std::to_string(bytes) +
                    " bytes; it takes at least " + std::to_string(least));
}

Image decode_image(const Item& item, int64_t max_pixels) {
  if (item.raw) return image_of_raw(item, max_pixels);
  if (starts_with(item.bytes, kJpegMagic)) return decode_jpeg(item.bytes, max_pixels);
  if (starts_with(item.bytes, kPngMagic)) return decode_png(item.bytes, max_pixels);
  throw DataError(std::to_string(item.bytes.size()) + " bytes that are neither JPEG nor PNG");
}

}  // namespace zea
