// SPDX-License-Identifier: Apache-2.0
// Pictures as a camera's files hold them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include <jpeglib.h>

#include "data/image.hpp"

namespace zea::testing {

/// A gradient with noise, so that encoded data is spread over the whole file.
inline Image make_picture(int64_t height, int64_t width, unsigned seed = 1) {
  Image image{height, width, std::vector<uint8_t>(static_cast<size_t>(3 * height * width))};
  std::mt19937 random(seed);
  for (size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = static_cast<uint8_t>(i / 40 + random() % 64);
  return image;
}

inline std::vector<uint8_t> encode_jpeg(const Image& image, bool progressive = false) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&info, &buffer, &bytes);
  info.image_width = static_cast<JDIMENSION>(image.width);
  info.image_height = static_cast<JDIMENSION>(image.height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<uint8_t*>(image.pixels.data()) + 3 * image.width * info.next_scanline;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::vector<uint8_t> result(buffer, buffer + bytes);
  jpeg_destroy_compress(&info);
  std::free(buffer);
  return result;
}

}  // namespace zea::testing
