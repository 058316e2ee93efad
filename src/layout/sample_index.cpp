// SPDX-License-Identifier: Apache-2.0
#include "layout/sample_index.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "core/error.hpp"
#include "core/mixed_bits.hpp"

namespace zea {

ItemList::ItemList(std::initializer_list<int64_t> counts) {
  int encoder = 0;
  for (int64_t items : counts) add(encoder++, items);
}

int64_t ItemList::of(int encoder) const {
  int64_t items = 0;
  for (const Run& run : runs_)
    if (run.encoder == encoder) items += run.items;
  return items;
}

void ItemList::add(int encoder, int64_t items, const ItemShape& shape) {
  if (items == 0) return;
  const auto next = std::ranges::upper_bound(runs_, encoder, {}, &Run::encoder);
  if (next != runs_.begin() && std::prev(next)->encoder == encoder &&
      std::prev(next)->shape == shape)
    std::prev(next)->items += items;
  else
    runs_.insert(next, {encoder, items, shape});
}

std::vector<ItemShape> ItemList::shapes(int encoder, const EncoderSpec& spec) const {
  std::vector<ItemShape> shapes;
  for (const Run& run : runs_)
    if (run.encoder == encoder)
      shapes.insert(shapes.end(), static_cast<size_t>(run.items),
                    run.shape.tokens > 0 ? run.shape : spec.item_shape());
  return shapes;
}

ItemList ItemList::kinds() const {
  ItemList found;
  for (const Run& run : runs_)
    if (found.of(run.encoder) == 0) found.add(run.encoder, 1);
  return found;
}

ItemList& ItemList::operator+=(const ItemList& other) {
  for (const Run& run : other.runs_) add(run.encoder, run.items, run.shape);
  return *this;
}

namespace {

/// Lists that differ in other members are told apart by comparison.
uint64_t hash_of(const ItemList& items) {
  uint64_t hash = 0;
  for (const ItemList::Run& run : items.runs())
    for (const int64_t number : {int64_t{run.encoder}, run.items, run.shape.tokens,
                                 run.shape.features, run.shape.width, run.shape.frames})
      hash = mixed(hash ^ static_cast<uint64_t>(number));
  return hash;
}

}  // namespace

SampleTable::SampleTable(const std::vector<SampleIndex>& samples) {
  reserve(samples.size());
  for (const SampleIndex& sample : samples) add(sample);
}

void SampleTable::add(const SampleIndex& sample) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  if (sample.tokens > kMost)
    throw DataError("sample " + std::to_string(size()) + " has " + std::to_string(sample.tokens) +
                    " tokens; allowed are at most " + std::to_string(kMost));
  rows_.push_back({static_cast<uint32_t>(sample.tokens), static_cast<uint32_t>(sample.targets),
                   number_of(sample.items)});
}

void SampleTable::append(const SampleTable& other) {
  std::vector<uint32_t> numbers;  // here, of the other's lists
  for (const ItemList& items : other.items_) numbers.push_back(number_of(items));
  for (const Row& row : other.rows_) rows_.push_back({row.tokens, row.targets, numbers[row.items]});
}

void SampleTable::set_targets(size_t sample, int64_t targets) {
  rows_[sample].targets = static_cast<uint32_t>(targets);
}

SampleIndex SampleTable::operator[](size_t sample) const {
  const Row& row = rows_[sample];
  return {.tokens = row.tokens, .items = items_[row.items], .targets = row.targets};
}

uint32_t SampleTable::number_of(const ItemList& items) {
  const uint64_t hash = hash_of(items);
  const auto [first, last] = numbers_.equal_range(hash);
  for (auto known = first; known != last; ++known)
    if (items_[known->second] == items) return known->second;
  const auto number = static_cast<uint32_t>(items_.size());
  numbers_.emplace(hash, number);
  items_.push_back(items);
  return number;
}

}  // namespace zea
