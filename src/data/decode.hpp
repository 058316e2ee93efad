// SPDX-License-Identifier: Apache-2.0
// One function per encoded format, of images and of sound, and the limits that they share. Faults
// of the bytes are DataError.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/audio.hpp"
#include "data/image.hpp"

namespace zea {

/// Throws DataError unless 1 <= height * width <= max_pixels.
void check_dimensions(const char* what, int64_t height, int64_t width, int64_t max_pixels);

/// Throws DataError unless a picture that takes `least` bytes can be in so many: before memory is
/// taken for its pixels.
void check_held(const char* what, int64_t height, int64_t width, int64_t least, size_t bytes);

Image decode_jpeg(std::span<const uint8_t> bytes, int64_t max_pixels);
Image decode_png(std::span<const uint8_t> bytes, int64_t max_pixels);

/// Throws DataError unless the rate is one that sound has and 1 <= samples <= max_seconds * rate.
void check_clip(const std::string& format, int64_t rate, int64_t samples, int64_t max_seconds);

Audio decode_wav(std::span<const uint8_t> bytes, int64_t max_seconds);
Audio decode_flac(std::span<const uint8_t> bytes, int64_t max_seconds);

}  // namespace zea
