// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/tokens/sample_index.hpp"

#include <numeric>

namespace zea {

ItemCounts::ItemCounts(std::initializer_list<int64_t> counts) {
  int encoder = 0;
  for (int64_t items : counts) add(encoder++, items);
}

int64_t ItemCounts::of(int encoder) const {
  const auto i = static_cast<size_t>(encoder);  // that of -1 lies beyond all
  return i < counts_.size() ? counts_[i] : 0;
}

int64_t ItemCounts::all() const {
  return std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
}

void ItemCounts::add(int encoder, int64_t items) {
  const auto i = static_cast<size_t>(encoder);
  if (items == 0) return;
  if (i >= counts_.size()) counts_.resize(i + 1, 0);
  counts_[i] += items;
}

ItemCounts ItemCounts::kinds() const {
  ItemCounts found;
  for (size_t i = 0; i < counts_.size(); ++i) found.add(static_cast<int>(i), counts_[i] > 0);
  return found;
}

ItemCounts& ItemCounts::operator+=(const ItemCounts& other) {
  for (size_t i = 0; i < other.counts_.size(); ++i) add(static_cast<int>(i), other.counts_[i]);
  return *this;
}

}  // namespace zea
