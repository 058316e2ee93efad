// SPDX-License-Identifier: Apache-2.0
// Whether boxes are a tiling.
#pragma once

#include <vector>

#include "core/extent.hpp"

namespace zea::testing {

/// True when `pieces` cover every element of `shape` exactly once.
inline bool covers_exactly_once(const Shape& shape, const std::vector<Extent>& pieces) {
  int64_t covered = 0;
  const Extent all = whole(shape);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (intersect(pieces[i], all) != pieces[i]) return false;
    covered += pieces[i].elements();
    for (size_t j = 0; j < i; ++j)
      if (!intersect(pieces[i], pieces[j]).empty()) return false;
  }
  return covered == num_elements(shape);
}

}  // namespace zea::testing
