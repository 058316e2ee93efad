// SPDX-License-Identifier: Apache-2.0
// The facts of a sample that a plan needs: counts and sizes from the data set's index, never
// contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <unordered_map>
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

/// The facts of all samples of a data set, in 12 bytes each because every rank holds them. Samples
/// with equal items share one ItemList.
class SampleTable {
 public:
  SampleTable() = default;
  /// Throws DataError as add() does.
  SampleTable(const std::vector<SampleIndex>& samples);
  SampleTable(std::initializer_list<SampleIndex> samples)
      : SampleTable(std::vector<SampleIndex>(samples)) {}

  /// Throws DataError for a sample of 2^32 tokens or more.
  void add(const SampleIndex& sample);
  void append(const SampleTable& other);
  void set_targets(size_t sample, int64_t targets);
  void reserve(size_t samples) { rows_.reserve(samples); }

  size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }
  SampleIndex operator[](size_t sample) const;

  /// Over the samples, by value.
  class Iterator {
   public:
    using value_type = SampleIndex;
    using difference_type = std::ptrdiff_t;

    Iterator() = default;
    Iterator(const SampleTable& table, size_t sample) : table_(&table), sample_(sample) {}
    SampleIndex operator*() const { return (*table_)[sample_]; }
    Iterator& operator++() {
      ++sample_;
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++sample_;
      return before;
    }
    bool operator==(const Iterator& other) const { return sample_ == other.sample_; }

   private:
    const SampleTable* table_ = nullptr;
    size_t sample_ = 0;
  };
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size()}; }

 private:
  struct Row {
    uint32_t tokens, targets, items;  ///< `items`: an index in `items_`
  };
  uint32_t number_of(const ItemList& items);

  std::vector<Row> rows_;
  std::vector<ItemList> items_;                          ///< the different lists of items
  std::unordered_multimap<uint64_t, uint32_t> numbers_;  ///< of `items_`, by their hashes
};

}  // namespace zea
