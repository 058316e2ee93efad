// SPDX-License-Identifier: Apache-2.0
// JPEG through libjpeg. Its errors leave by longjmp into the C++ function that called it, which
// then throws: a method that calls libjpeg has no local with a destructor. Damage that libjpeg
// would paint over in grey is an error here, and so is a missing end mark.
#include <algorithm>
#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>
// After jpeglib.h: they need its types.
#include <jerror.h>

#include "core/error.hpp"
#include "data/image.hpp"

namespace zea {
namespace {

constexpr int kMaxScans =
    100;  ///< a progressive file can ask for any number of passes over the whole image

/// At one bit for each 8 x 8 pixels of a component, of which some may be four times as coarse in
/// one direction. Of arithmetic coding the limit is max_pixels alone.
constexpr int64_t kMaxPixelsOfByte = 4096;

/// 8-bit product of two fractions of 255, rounded.
int multiply_255(int a, int b) {
  const int product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

/// Inks to light, for inks stored inverted as Adobe does (255: none), which is what PIL assumes
/// too.
void rgb_of_inverted_cmyk(const uint8_t* cmyk, int64_t pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i)
    for (int64_t c = 0; c < 3; ++c) {
      const int black = cmyk[4 * i + 3];
      const int light = black - multiply_255(255 - cmyk[4 * i + c], black);
      rgb[3 * i + c] = static_cast<uint8_t>(light < 0 ? 0 : light);
    }
}

class JpegReader {
 public:
  explicit JpegReader(std::span<const uint8_t> bytes);
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  void read_header();
  int64_t height() const { return info_.image_height; }
  int64_t width() const { return info_.image_width; }
  bool is_cmyk() const { return info_.num_components == 4; }
  bool is_huffman_coded() const { return !info_.arith_code; }
  /// Decodes all rows into `target`; `cmyk_row` is one row of memory where is_cmyk().
  void read_rows(uint8_t* target, uint8_t* cmyk_row);
  void check_end();

 private:
  static JpegReader& of(void* client) { return *static_cast<JpegReader*>(client); }
  [[noreturn]] static void leave(j_common_ptr info);
  static void on_message(j_common_ptr info, int level);
  static boolean on_end_of_bytes(j_decompress_ptr info);
  static void on_progress(j_common_ptr info);
  [[noreturn]] void refuse() const { throw DataError(std::string("JPEG: ") + message_); }

  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_;
  char message_[JMSG_LENGTH_MAX] = "";
};

JpegReader::JpegReader(std::span<const uint8_t> bytes) {
  info_.err = jpeg_std_error(&errors_);
  errors_.error_exit = leave;
  errors_.emit_message = on_message;
  info_.client_data = this;
  if (setjmp(jump_)) {
    jpeg_destroy_decompress(&info_);
    refuse();
  }
  jpeg_create_decompress(&info_);
  progress_.progress_monitor = on_progress;
  info_.progress = &progress_;
  jpeg_mem_src(&info_, bytes.data(), bytes.size());
  info_.src->fill_input_buffer = on_end_of_bytes;
}

void JpegReader::leave(j_common_ptr info) {
  JpegReader& reader = of(info->client_data);
  info->err->format_message(info, reader.message_);
  std::longjmp(reader.jump_, 1);
}

/// Warnings after which pixels are not those of the picture become errors; the others are harmless.
void JpegReader::on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  const int code = info->err->msg_code;
  if (code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE || code == JWRN_ARITH_BAD_CODE ||
      code == JWRN_MUST_RESYNC)
    leave(info);
}

boolean JpegReader::on_end_of_bytes(j_decompress_ptr info) {
  ERREXIT(info, JERR_INPUT_EOF);
  return FALSE;
}

void JpegReader::on_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans) return;
  JpegReader& reader = of(info->client_data);
  std::snprintf(reader.message_, sizeof reader.message_, "more than %d scans", kMaxScans);
  std::longjmp(reader.jump_, 1);
}

void JpegReader::read_header() {
  if (setjmp(jump_)) refuse();
  jpeg_read_header(&info_, TRUE);
}

void JpegReader::read_rows(uint8_t* target, uint8_t* cmyk_row) {
  if (setjmp(jump_)) refuse();
  info_.out_color_space = is_cmyk() ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&info_);
  while (info_.output_scanline < info_.output_height) {
    uint8_t* rgb = target + size_t{3} * info_.output_width * info_.output_scanline;
    uint8_t* row = is_cmyk() ? cmyk_row : rgb;
    if (jpeg_read_scanlines(&info_, &row, 1) == 1 && is_cmyk())
      rgb_of_inverted_cmyk(row, info_.output_width, rgb);
  }
}

/// Zeros behind a cut are codes like others, and may fill the rows that are missing.
void JpegReader::check_end() {
  constexpr uint8_t kEnd[] = {0xff, 0xd9};
  if (info_.unread_marker != 0 || jpeg_input_complete(&info_)) return;
  const std::span<const uint8_t> rest(info_.src->next_input_byte, info_.src->bytes_in_buffer);
  if (std::search(rest.begin(), rest.end(), std::begin(kEnd), std::end(kEnd)) == rest.end())
    throw DataError("JPEG: no end mark behind the last row: it was cut, or filled up");
}

}  // namespace

Image decode_jpeg(std::span<const uint8_t> bytes, int64_t max_pixels) {
  JpegReader reader(bytes);
  reader.read_header();
  check_dimensions("JPEG", reader.height(), reader.width(), max_pixels);
  if (reader.is_huffman_coded())
    check_held("JPEG", reader.height(), reader.width(),
               reader.height() * reader.width() / kMaxPixelsOfByte, bytes.size());

  Image image{reader.height(), reader.width(), {}};
  image.pixels.resize(static_cast<size_t>(3 * image.height * image.width));
  std::vector<uint8_t> cmyk_row(reader.is_cmyk() ? static_cast<size_t>(4 * image.width) : 0);
  reader.read_rows(image.pixels.data(), cmyk_row.data());
  reader.check_end();
  return image;
}

}  // namespace zea
