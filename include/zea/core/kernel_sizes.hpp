// SPDX-License-Identifier: Apache-2.0
// Sizes at which kernels and functions change what they allocate: code and the plan of memory read
// them here, so that neither can change alone.
#pragma once

#include <algorithm>
#include <cstdint>

namespace zea {

/// Attention among up to so many tokens runs in our own kernels on the host, which keep nothing but
/// their input. Longer segments are better off with libtorch's, whose GEMMs pay there.
inline constexpr int64_t kLongestShortSegment = 192;

/// Elements that a kernel takes at once: few enough to stay in a core's cache through a pass, and
/// the grain of deterministic sums.
inline constexpr int64_t kChunkElements = 4096;

/// Rows of so many elements that a kernel takes at once.
constexpr int64_t rows_per_chunk(int64_t row_elements) {
  return std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, row_elements));
}

/// Rows whose logits exist at once: about 16 MiB of fp32.
constexpr int64_t rows_of_logits(int64_t vocabulary) {
  return std::max<int64_t>(16, (int64_t{4} << 20) / vocabulary);
}

}  // namespace zea
