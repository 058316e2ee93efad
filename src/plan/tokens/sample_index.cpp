// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/tokens/sample_index.hpp"

namespace zea {

int64_t ItemCounts::of(const std::string& module) const {
  if (module == "vision") return images;
  return module == "audio" ? clips : 0;
}

ItemCounts& ItemCounts::operator+=(const ItemCounts& other) {
  images += other.images;
  clips += other.clips;
  return *this;
}

}  // namespace zea
