// SPDX-License-Identifier: Apache-2.0
// One function per encoded format, and the limit that all formats share. Faults of the bytes are
// DataError.
#pragma once

#include <cstdint>
#include <span>

#include "zea/data/image.hpp"

namespace zea {

/// Throws DataError unless 1 <= height * width <= max_pixels.
void check_dimensions(const char* what, int64_t height, int64_t width, int64_t max_pixels);

Image decode_jpeg(std::span<const uint8_t> bytes, int64_t max_pixels);
Image decode_png(std::span<const uint8_t> bytes, int64_t max_pixels);

}  // namespace zea
