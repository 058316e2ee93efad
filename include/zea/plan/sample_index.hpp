// SPDX-License-Identifier: Apache-2.0
// What a plan needs to know of a sample: counts from the data set's index, never contents.
#pragma once

#include <cstdint>

namespace zea {

struct SampleIndex {
  int64_t tokens = 0;
  int64_t items = 0;  ///< images
  int64_t targets =
      0;  ///< tokens with loss, after the shift: a sample's first token is never a target
};

}  // namespace zea
