// SPDX-License-Identifier: Apache-2.0
// What a plan needs to know of a sample: counts from the data set's index, never contents.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace zea {

/// Items of each encoder, by its index in ModelSpec::encoders.
class ItemCounts {
 public:
  ItemCounts(int64_t of_first = 0) { add(0, of_first); }
  ItemCounts(std::initializer_list<int64_t> counts);

  /// 0 of what is no encoder.
  int64_t of(int encoder) const;
  int64_t all() const;
  void add(int encoder, int64_t items);
  /// 1 of each encoder that there are items of.
  ItemCounts kinds() const;
  ItemCounts& operator+=(const ItemCounts& other);
  bool operator==(const ItemCounts&) const = default;

 private:
  std::vector<int64_t> counts_;  ///< up to the last encoder that has items
};

struct SampleIndex {
  int64_t tokens = 0;
  ItemCounts items = {};
  int64_t targets =
      0;  ///< tokens with loss, after the shift: a sample's first token is never a target
};

}  // namespace zea
