// SPDX-License-Identifier: Apache-2.0
// Decoding of good images and, above all, of bad ones: any bytes either decode or throw DataError.
// That values equal transformers' is tested in tests/reference/compare_preprocess.py.
#include "data/image.hpp"

#include <algorithm>
#include <cstdio>
#include <random>

#include <gtest/gtest.h>
#include <png.h>

#include "core/error.hpp"
#include "support/jpeg_picture.hpp"

namespace zea::test_image {
namespace {

using testing::encode_jpeg;
using testing::make_picture;

constexpr int64_t kMaxPixels = 1000000;

std::vector<uint8_t> encode_png(const Image& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::vector<uint8_t> result(bytes);
  png_image_write_to_memory(&png, result.data(), &bytes, 0, image.pixels.data(), 0, nullptr);
  result.resize(bytes);
  return result;
}

Item encoded_item(std::vector<uint8_t> bytes) {
  Item item;
  item.bytes = std::move(bytes);
  return item;
}

Image decode(const std::vector<uint8_t>& bytes, int64_t max_pixels = kMaxPixels) {
  return decode_image(encoded_item(bytes), max_pixels);
}

/// Returns the message that decoding throws; empty: none.
std::string fault_of(const std::vector<uint8_t>& bytes, int64_t max_pixels = kMaxPixels) {
  try {
    decode(bytes, max_pixels);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

struct Format {
  const char* name;
  std::vector<uint8_t> bytes;
};

std::vector<Format> all_formats() {
  const Image picture = make_picture(60, 80);
  return {{"baseline", encode_jpeg(picture, false)},
          {"progressive", encode_jpeg(picture, true)},
          {"png", encode_png(picture)}};
}

TEST(Image, PngIsLossless) {
  const Image picture = make_picture(13, 17);

  const Image decoded = decode(encode_png(picture));

  EXPECT_EQ(decoded.height, 13);
  EXPECT_EQ(decoded.width, 17);
  EXPECT_EQ(decoded.pixels, picture.pixels);
}

TEST(Image, ProgressiveAndBaselineJpegAgree) {
  const Image picture = make_picture(60, 80);

  EXPECT_EQ(decode(encode_jpeg(picture, false)).pixels, decode(encode_jpeg(picture, true)).pixels);
}

TEST(Image, ATruncatedFileIsRefused) {
  for (const auto& [name, bytes] : all_formats())
    for (size_t percent = 0; percent < 100; percent += 5) {
      const std::vector<uint8_t> part(bytes.begin(), bytes.begin() + bytes.size() * percent / 100);
      EXPECT_NE(fault_of(part), "") << name << " cut at " << percent << " %";
    }
}

/// libjpeg decodes the padding of a truncated file as an image, so only the file's end shows the
/// fault.
TEST(Image, ACutJpegThatIsFilledUpIsRefused) {
  const std::vector<uint8_t> bytes = encode_jpeg(make_picture(60, 80));
  for (size_t percent : {70, 80, 90, 99})
    for (size_t fill : {1000, 100000}) {
      std::vector<uint8_t> part(bytes.begin(), bytes.begin() + bytes.size() * percent / 100);
      part.resize(part.size() + fill);
      EXPECT_NE(fault_of(part), "") << percent << " % and " << fill;
    }
  std::vector<uint8_t> more = bytes;
  more.resize(bytes.size() + 1000);
  EXPECT_EQ(decode(more).pixels, decode(bytes).pixels) << "bytes behind the end mark";
}

TEST(Image, AFlippedByteDecodesOrIsRefused) {
  std::mt19937 random(7);
  for (const auto& [name, bytes] : all_formats()) {
    int refused = 0;
    for (int i = 0; i < 2000; ++i) {
      std::vector<uint8_t> damaged = bytes;
      damaged[random() % damaged.size()] ^= static_cast<uint8_t>(1 + random() % 255);
      refused += fault_of(damaged).empty() ? 0 : 1;
    }
    EXPECT_GT(refused, 100) << name;
  }
}

TEST(Image, EveryFlippedByteOfPngDataIsFound) {
  const std::vector<uint8_t> bytes = encode_png(make_picture(20, 20));
  for (size_t i = 0; i + 12 < bytes.size(); ++i) {
    std::vector<uint8_t> damaged = bytes;
    damaged[i] ^= 0x10;
    // Where a chunk that carries no pixels is hit, nothing of the picture is lost.
    if (!fault_of(damaged).empty()) continue;
    EXPECT_EQ(decode(damaged).pixels, decode(bytes).pixels) << i;
  }
}

TEST(Image, OtherFormatsAreNamed) {
  EXPECT_CONTAINS(fault_of({'G', 'I', 'F', '8', '9', 'a', 0, 0}),
                  "8 bytes that are neither JPEG nor PNG");
  EXPECT_CONTAINS(fault_of({}), "0 bytes that are neither JPEG nor PNG");
  EXPECT_NE(fault_of({0xff, 0xd8, 0xff}), "");
  EXPECT_NE(fault_of({0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'}), "");
}

TEST(Image, TooManyPixelsAreRefusedFromTheHeader) {
  std::vector<uint8_t> jpeg = encode_jpeg(make_picture(8, 8), false);
  const uint8_t start_of_frame[2] = {0xff, 0xc0};
  const auto frame = std::search(jpeg.begin(), jpeg.end(), start_of_frame, start_of_frame + 2);
  frame[5] = frame[7] = 0xea;  // 60000 x 60000
  frame[6] = frame[8] = 0x60;

  EXPECT_CONTAINS(fault_of(jpeg, 100000000),
                  "JPEG of 60000 x 60000 pixels, more than data.max_image_pixels = 100000000");
  EXPECT_CONTAINS(fault_of(encode_png(make_picture(40, 30)), 1199),
                  "PNG of 40 x 30 pixels, more than");
  EXPECT_EQ(fault_of(encode_png(make_picture(40, 30)), 1200), "");
}

TEST(Image, MorePixelsThanItsBytesCanHoldAreRefusedFromTheHeader) {
  std::vector<uint8_t> jpeg = encode_jpeg(make_picture(8, 8), false);
  const uint8_t start_of_frame[2] = {0xff, 0xc0};
  const auto frame = std::search(jpeg.begin(), jpeg.end(), start_of_frame, start_of_frame + 2);
  frame[5] = frame[7] = 0x20;  // 8192 x 8192
  frame[6] = frame[8] = 0;
  std::vector<uint8_t> png = encode_png(make_picture(8, 8));
  png[18] = png[22] = 0x20;  // 8200 x 8200
  const std::vector<uint8_t> sum{0x02, 0x4c, 0x9f, 0x97};
  std::copy(sum.begin(), sum.end(), png.begin() + 29);

  EXPECT_CONTAINS(fault_of(jpeg, 100000000), "JPEG of 8192 x 8192 pixels in " +
                                                 std::to_string(jpeg.size()) +
                                                 " bytes; it takes at least 16384");
  EXPECT_CONTAINS(fault_of(png, 100000000), "bytes; it takes at least 195473");
}

TEST(Image, AFlatPictureMayBeSmall) {
  const Image black{400, 400, std::vector<uint8_t>(480000)};

  for (const auto& bytes : {encode_jpeg(black, false), encode_jpeg(black, true), encode_png(black)})
    EXPECT_EQ(fault_of(bytes, 4000000), "") << bytes.size();
}

TEST(Image, AProgressiveFileOfTooManyScansIsRefused) {
  std::vector<uint8_t> jpeg = encode_jpeg(make_picture(16, 16), true);
  const uint8_t start_of_scan[2] = {0xff, 0xda}, start_of_table[2] = {0xff, 0xc4};
  const auto first = std::search(jpeg.begin(), jpeg.end(), start_of_scan, start_of_scan + 2);
  const auto end = std::search(first, jpeg.end(), start_of_table, start_of_table + 2);
  const std::vector<uint8_t> scan(first, end), rest(end, jpeg.end());
  jpeg.erase(end, jpeg.end());
  for (int i = 0; i < 10000; ++i) jpeg.insert(jpeg.end(), scan.begin(), scan.end());
  jpeg.insert(jpeg.end(), rest.begin(), rest.end());

  EXPECT_CONTAINS(fault_of(jpeg), "more than 100 scans");
}

TEST(Image, RawItemsAreGreyOrRgb) {
  const Item grey{{1, 2}, true, 1, 2, 1};
  const Item rgb{{1, 2, 3}, true, 1, 1, 3};

  EXPECT_EQ(decode_image(grey, 2).pixels, (std::vector<uint8_t>{1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(decode_image(rgb, 2).pixels, (std::vector<uint8_t>{1, 2, 3}));
  EXPECT_THROW(decode_image({{1, 2}, true, 1, 1, 2}, 2), DataError);
  EXPECT_THROW(decode_image({{1, 2}, true, 1, 3, 1}, 9), DataError);
  EXPECT_THROW(decode_image({{}, true, 0, 3, 1}, 9), DataError);
  EXPECT_THROW(decode_image(grey, 1), DataError);
  EXPECT_THROW(decode_image({{1}, true, int64_t{1} << 62, 4, 1}, kMaxPixels), DataError);
}

ImageOptions plain_options(int64_t size) {
  return {size, {0, 0, 0}, {1, 1, 1}, kMaxPixels};
}

TEST(Preprocess, AnImageOfTheRightSizeIsOnlyScaled) {
  const Image picture = make_picture(9, 9);
  std::vector<float> pixels(3 * 81);

  preprocess_image(picture, plain_options(9), pixels.data());

  for (size_t i = 0; i < 81; ++i)
    for (size_t c = 0; c < 3; ++c)
      EXPECT_FLOAT_EQ(pixels[c * 81 + i], picture.pixels[3 * i + c] / 255.0f);
}

TEST(Preprocess, ChannelsAreNormalisedEachByItsOwn) {
  Image image{1, 1, {255, 0, 51}};
  std::vector<float> pixels(3);

  preprocess_image(image, {1, {0.5, 0.5, 0.1}, {0.5, 0.25, 2}, kMaxPixels}, pixels.data());

  EXPECT_FLOAT_EQ(pixels[0], 1);
  EXPECT_FLOAT_EQ(pixels[1], -2);
  EXPECT_FLOAT_EQ(pixels[2], 0.05f);
}

TEST(Preprocess, AFlatImageStaysFlatAtAnySize) {
  for (int64_t height : {1, 2, 7, 64, 333})
    for (int64_t width : {1, 3, 50, 1000}) {
      const Image flat{height, width,
                       std::vector<uint8_t>(static_cast<size_t>(3 * height * width), 51)};
      std::vector<float> pixels(3 * 16 * 16, -1);
      preprocess_image(flat, plain_options(16), pixels.data());
      for (float value : pixels) ASSERT_FLOAT_EQ(value, 0.2f);
    }
}

TEST(Preprocess, AVeryLongImageIsCroppedWithoutResizingAllOfIt) {
  const Image strip{1000000, 1, std::vector<uint8_t>(3000000, 255)};
  std::vector<float> pixels(3 * 224 * 224);

  preprocess_image(strip, plain_options(224), pixels.data());

  EXPECT_FLOAT_EQ(pixels[0], 1);
}

TEST(Preprocess, TorchvisionMakesNoMorePixelsOnItsWayThanAllowed) {
  const Image strip{10000, 1, std::vector<uint8_t>(30000, 255)};
  std::vector<float> pixels(3 * 224 * 224);
  ImageOptions options = plain_options(224);
  options.by_torchvision = true;
  const auto fault = [&](bool crops) -> std::string {
    try {
      if (crops)
        preprocess_image(strip, options, pixels.data());
      else
        preprocess_image(strip, options, ImageSize{224, 224}, pixels.data());
    } catch (const DataError& refused) {
      return refused.what();
    }
    return "";
  };
  const std::string most = "more than data.max_image_pixels = " + std::to_string(kMaxPixels);
  EXPECT_NE(fault(true).find("10000 x 224 pixels, " + most), std::string::npos) << fault(true);
  EXPECT_EQ(fault(true), fault(false));
  options.max_pixels = 10000 * 224;
  EXPECT_NE(fault(true).find("2240000 x 224 pixels, more"), std::string::npos) << fault(true);
  EXPECT_EQ(fault(false), "");
}

}  // namespace
}  // namespace zea::test_image
