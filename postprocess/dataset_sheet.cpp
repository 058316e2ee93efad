// SPDX-License-Identifier: Apache-2.0
// A contact sheet of a data set: samples at equal distances, the first picture of each above its
// number. Written by libpng, whose errors leave by longjmp, as in data/decode_png.cpp.
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>

#include "inspect.hpp"

namespace zea {
namespace {

constexpr int64_t kCell = 160, kGap = 8, kColumns = 8, kMostCells = 40;
constexpr int64_t kDot = 2;  ///< pixels of a dot of a digit, which has 3 x 5
constexpr int64_t kDigitHeight = 5 * kDot, kDigitWidth = 4 * kDot;
constexpr uint8_t kPaper = 255, kInk = 40, kEmpty = 225;
/// Rows of three dots each, from the top.
constexpr std::array<uint16_t, 10> kDigits{
    0b111101101101111, 0b010110010010111, 0b111001111100111, 0b111001111001111, 0b101101111001001,
    0b111100111001111, 0b111100111101111, 0b111001001001001, 0b111101111101111, 0b111101111001111};

class Sheet {
 public:
  explicit Sheet(int64_t cells)
      : columns_(std::min(cells, kColumns)),
        rows_((cells + kColumns - 1) / kColumns),
        image_{rows_ * kCellHeight + kGap, columns_ * (kCell + kGap) + kGap, {}} {
    image_.pixels.assign(static_cast<size_t>(3 * image_.height * image_.width), kPaper);
  }

  /// Draws a picture, or a grey square for a sample without one, or with one that does not decode.
  void draw(int64_t cell, int64_t id, const Picture& picture) {
    const int64_t top = kGap + cell / kColumns * kCellHeight;
    const int64_t left = kGap + cell % kColumns * (kCell + kGap);
    draw_picture(top, left, picture);
    int64_t x = left;
    for (const char digit : std::to_string(id)) {
      draw_digit(top + kCell + kGap / 2, x, kDigits[static_cast<size_t>(digit - '0')]);
      x += kDigitWidth;
    }
  }

  const Picture& image() const { return image_; }

 private:
  static constexpr int64_t kCellHeight = kCell + kDigitHeight + 2 * kGap;

  uint8_t* at(int64_t y, int64_t x) {
    return &image_.pixels[static_cast<size_t>(3 * (y * image_.width + x))];
  }

  void draw_picture(int64_t top, int64_t left, const Picture& picture) {
    const int64_t longer = std::max({picture.height, picture.width, int64_t{1}});
    const int64_t height = std::max<int64_t>(1, picture.height * kCell / longer);
    const int64_t width = std::max<int64_t>(1, picture.width * kCell / longer);
    const bool is_empty = picture.pixels.empty();
    for (int64_t y = 0; y < (is_empty ? kCell : height); ++y)
      for (int64_t x = 0; x < (is_empty ? kCell : width); ++x)
        for (int64_t c = 0; c < 3; ++c)
          at(top + y, left + x)[c] =
              is_empty ? kEmpty : mean_of(picture, {y, height}, {x, width}, c);
  }

  /// Number `of` of so many pixels that a side becomes.
  struct Place {
    int64_t of, all;
    int64_t begin(int64_t side) const { return of * side / all; }
    int64_t end(int64_t side) const { return std::max(begin(side) + 1, (of + 1) * side / all); }
  };

  static uint8_t mean_of(const Picture& picture, Place y, Place x, int64_t colour) {
    int64_t sum = 0, count = 0;
    for (int64_t row = y.begin(picture.height); row < y.end(picture.height); ++row)
      for (int64_t column = x.begin(picture.width); column < x.end(picture.width); ++column) {
        sum += picture.pixels[static_cast<size_t>(3 * (row * picture.width + column) + colour)];
        ++count;
      }
    return static_cast<uint8_t>(sum / count);
  }

  void draw_digit(int64_t top, int64_t left, uint16_t dots) {
    for (int64_t y = 0; y < kDigitHeight; ++y)
      for (int64_t x = 0; x < 3 * kDot; ++x)
        if ((dots >> (14 - (y / kDot * 3 + x / kDot))) & 1)
          std::fill_n(at(top + y, left + x), 3, kInk);
  }

  int64_t columns_, rows_;
  Picture image_;
};

/// libpng's error text stays in `message`.
bool write_rows(std::FILE* file, const Picture& image, std::string& message) {
  const auto on_error = [](png_structp png, png_const_charp text) {
    *static_cast<std::string*>(png_get_error_ptr(png)) = text;
    png_longjmp(png, 1);
  };
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &message, on_error, nullptr);
  png_infop info = png ? png_create_info_struct(png) : nullptr;
  if (!info || setjmp(png_jmpbuf(png))) {
    png_destroy_write_struct(&png, &info);
    return false;
  }
  png_init_io(png, file);
  png_set_IHDR(png, info, static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height), 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  for (int64_t row = 0; row < image.height; ++row)
    png_write_row(png, &image.pixels[static_cast<size_t>(3 * row * image.width)]);
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return true;
}

void write_png(const std::string& path, const Picture& image) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file) throw StorageError(path + ": cannot be written");
  std::string message;
  const bool is_written = write_rows(file, image, message);
  if (std::fclose(file) != 0 || !is_written)
    throw StorageError(path + ": cannot be written" + (message.empty() ? "" : ": " + message));
}

/// The first picture, or the first of a video; empty where there is none that decodes.
Picture first_picture(const DatasetSample& sample, int64_t id) {
  for (const DatasetItem& item : sample.items) {
    if (item.type == DatasetItem::Type::Audio) continue;
    try {
      return decode_picture(item);
    } catch (const DataError& fault) {
      print_line("sample %lld: its picture does not decode: %s", static_cast<long long>(id),
                 fault.what());
      return {};
    }
  }
  return {};
}

}  // namespace

void draw_sheet(const DatasetReader& dataset, const std::string& path) {
  const int64_t samples = dataset.samples();
  const int64_t cells = std::min(samples, kMostCells);
  Sheet sheet(cells);
  for (int64_t cell = 0; cell < cells; ++cell) {
    const int64_t id = cells == 1 ? 0 : cell * (samples - 1) / (cells - 1);
    sheet.draw(cell, id, first_picture(dataset.read(id), id));
  }
  write_png(path, sheet.image());
  print_line("%s: %s of %s samples", path.c_str(), grouped(cells).c_str(),
             grouped(samples).c_str());
}

}  // namespace zea
