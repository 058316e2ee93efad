// SPDX-License-Identifier: Apache-2.0
// PNG through libpng, to RGB as PIL does it: alpha and tRNS dropped, 16-bit colour cut to its high
// byte, 16-bit grey saturated at 255, gamma ignored. libpng's errors leave by longjmp, as in
// decode_jpeg.cpp.
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <png.h>

#include "core/error.hpp"
#include "data/image.hpp"

namespace zea {
namespace {

constexpr int64_t kMaxDeflation = 1032;  ///< bytes that one byte of compressed data can become

class PngReader {
 public:
  explicit PngReader(std::span<const uint8_t> bytes);
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  void read_header();
  int64_t height() const { return png_get_image_height(png_, info_); }
  int64_t width() const { return png_get_image_width(png_, info_); }
  bool is_palette() const { return png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE; }
  bool is_grey16() const {
    return png_get_color_type(png_, info_) == PNG_COLOR_TYPE_GRAY &&
           png_get_bit_depth(png_, info_) == 16;
  }
  /// Bytes that the picture takes in a file: every row has a byte for its filter.
  int64_t least_bytes() const {
    const int64_t bits = int64_t{png_get_bit_depth(png_, info_)} * png_get_channels(png_, info_);
    return (height() + height() * width() * bits / 8) / kMaxDeflation;
  }
  /// Bytes of a decoded row, after the conversions that libpng makes: RGB, or index, or 16-bit
  /// grey.
  size_t begin_rows();
  /// Decodes the whole image into rows.
  void read_rows(uint8_t** rows);
  const png_color* palette(int& entries) const;

 private:
  static void on_error(png_structp png, png_const_charp text);
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep target, size_t bytes);
  [[noreturn]] void refuse() const { throw DataError(std::string("PNG: ") + message_); }

  std::span<const uint8_t> rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  char message_[128] = "";
};

PngReader::PngReader(std::span<const uint8_t> bytes) : rest_(bytes) {
  png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
  info_ = png_ ? png_create_info_struct(png_) : nullptr;
  if (!info_) {
    png_destroy_read_struct(&png_, nullptr, nullptr);
    throw std::bad_alloc();
  }
  png_set_read_fn(png_, this, on_read);
}

void PngReader::on_error(png_structp png, png_const_charp text) {
  auto& reader = *static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader.message_, sizeof reader.message_, "%s", text);
  png_longjmp(png, 1);
}

void PngReader::on_read(png_structp png, png_bytep target, size_t bytes) {
  auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
  if (bytes > reader.rest_.size()) png_error(png, "bytes end before the image does");
  std::memcpy(target, reader.rest_.data(), bytes);
  reader.rest_ = reader.rest_.subspan(bytes);
}

void PngReader::read_header() {
  if (setjmp(png_jmpbuf(png_))) refuse();
  // Text, profiles and the like are skipped unread: a compressed one could hold any number of
  // bytes.
  png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);  // max_pixels is the limit
  png_read_info(png_, info_);
}

size_t PngReader::begin_rows() {
  if (setjmp(png_jmpbuf(png_))) refuse();
  png_set_interlace_handling(png_);
  png_set_strip_alpha(png_);
  if (is_palette()) {
    png_set_packing(png_);
  } else if (!is_grey16()) {
    png_set_strip_16(png_);
    png_set_expand_gray_1_2_4_to_8(png_);
    png_set_gray_to_rgb(png_);
  }
  png_read_update_info(png_, info_);
  return png_get_rowbytes(png_, info_);
}

void PngReader::read_rows(uint8_t** rows) {
  if (setjmp(png_jmpbuf(png_))) refuse();
  png_read_image(png_, rows);
  png_read_end(png_, nullptr);  // checks the sums of the last data
}

const png_color* PngReader::palette(int& entries) const {
  png_color* colours = nullptr;
  entries = 0;
  png_get_PLTE(png_, info_, &colours, &entries);
  return colours;
}

/// Palette indices to colours; an index beyond the palette is black.
void expand_palette(const std::vector<uint8_t>& indices, const PngReader& reader, Image& image) {
  int entries = 0;
  const png_color* colours = reader.palette(entries);
  for (size_t i = 0; i < indices.size(); ++i) {
    const png_color colour = indices[i] < entries ? colours[indices[i]] : png_color{0, 0, 0};
    image.pixels[3 * i] = colour.red;
    image.pixels[3 * i + 1] = colour.green;
    image.pixels[3 * i + 2] = colour.blue;
  }
}

/// 16-bit grey (high byte first), saturated as PIL does.
void saturate_grey16(const std::vector<uint8_t>& values, Image& image) {
  for (size_t i = 0; 2 * i < values.size(); ++i)
    std::memset(&image.pixels[3 * i], values[2 * i] == 0 ? values[2 * i + 1] : 255, 3);
}

}  // namespace

Image decode_png(std::span<const uint8_t> bytes, int64_t max_pixels) {
  PngReader reader(bytes);
  reader.read_header();
  check_dimensions("PNG", reader.height(), reader.width(), max_pixels);
  check_held("PNG", reader.height(), reader.width(), reader.least_bytes(), bytes.size());

  Image image{reader.height(), reader.width(), {}};
  image.pixels.resize(static_cast<size_t>(3 * image.height * image.width));
  const bool palette = reader.is_palette(), grey16 = reader.is_grey16();
  const size_t row_bytes = reader.begin_rows();
  std::vector<uint8_t> narrow(palette || grey16 ? row_bytes * static_cast<size_t>(image.height)
                                                : 0);
  uint8_t* first = narrow.empty() ? image.pixels.data() : narrow.data();
  std::vector<uint8_t*> rows(static_cast<size_t>(image.height));
  for (size_t y = 0; y < rows.size(); ++y) rows[y] = first + y * row_bytes;
  reader.read_rows(rows.data());

  if (palette) expand_palette(narrow, reader, image);
  if (grey16) saturate_grey16(narrow, image);
  return image;
}

}  // namespace zea
