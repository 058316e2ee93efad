// SPDX-License-Identifier: Apache-2.0
// The facts of a sample that a plan needs: counts and sizes from the data set's index, never
// contents.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "spec/module_spec.hpp"

namespace zea {

/// Items of each encoder, by its index in ModelSpec::encoders, in their order.
class ItemList {
 public:
  ItemList(int64_t of_first = 0) { add(0, of_first); }
  ItemList(std::initializer_list<int64_t> counts);

  /// How many; 0 of what is no encoder.
  int64_t of(int encoder) const;
  /// `shape`: where an encoder's items differ in it.
  void add(int encoder, int64_t items, const ItemShape& shape = {});
  /// The shape of each item of the encoder with that index.
  std::vector<ItemShape> shapes(int encoder, const EncoderSpec& spec) const;
  /// An item of each encoder that there are items of.
  ItemList kinds() const;
  ItemList& operator+=(const ItemList& other);
  bool operator==(const ItemList&) const = default;

  /// Neighbours among an encoder's items that are alike.
  struct Run {
    int encoder;
    int64_t items;
    ItemShape shape;  ///< without tokens: that of every item of the encoder

    bool operator==(const Run&) const = default;
  };
  const std::vector<Run>& runs() const { return runs_; }

 private:
  std::vector<Run> runs_;  ///< by encoder
};

struct SampleIndex {
  int64_t tokens = 0;
  ItemList items = {};
  int64_t targets =
      0;  ///< tokens with loss, after the shift: a sample's first token is never a target

  bool operator==(const SampleIndex&) const = default;
};

}  // namespace zea
