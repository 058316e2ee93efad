// SPDX-License-Identifier: Apache-2.0
// What the values of a row weigh in those of the row that it is resized to: of pixels of an image,
// and of rows of a table of positions that is laid over one.
#pragma once

#include <cstdint>
#include <vector>

namespace zea {

/// How values between those of a row are found where it is resized.
enum class Resampling { Bicubic, Bilinear, Lanczos };

/// Values [first, first + weights.size()) of a row, and what each weighs: 1 together.
struct SourceWeights {
  int64_t first = 0;
  std::vector<double> weights;
};

/// What makes value `target` of the `target_size` that a row of `source_size` becomes. Values stand
/// in the middle of equal shares of the row; where these become fewer the kernel is as much wider
/// (antialiasing).
SourceWeights source_weights(int64_t target, int64_t source_size, int64_t target_size,
                             Resampling resampling);

}  // namespace zea
