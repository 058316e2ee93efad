// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/tokens/item_row.hpp"

#include <algorithm>

#include "zea/core/error.hpp"

namespace zea {
namespace {

std::vector<ItemShape> chosen(const std::vector<ItemShape>& all,
                              const std::vector<int64_t>& items) {
  std::vector<ItemShape> shapes;
  for (int64_t item : items) shapes.push_back(all[item]);
  return shapes;
}

std::vector<int64_t> starts_of_items(const std::vector<ItemShape>& items) {
  std::vector<int64_t> starts;
  int64_t start = 0;
  for (const ItemShape& item : items) {
    starts.push_back(start);
    start += item.tokens;
  }
  return starts;
}

/// For each token of `items` the number of its feature among those of all items.
std::vector<int64_t> features_of_tokens(const std::vector<ItemShape>& all,
                                        const std::vector<int64_t>& items) {
  std::vector<int64_t> features;
  size_t next = 0;
  int64_t before = 0;
  for (size_t item = 0; item < all.size(); ++item) {
    const ItemShape& shape = all[item];
    if (next < items.size() && items[next] == static_cast<int64_t>(item)) {
      ++next;
      for (int64_t token = 0; token < shape.tokens; ++token) {
        const int64_t feature = token < shape.first ? -1 : (token - shape.first) / shape.merge;
        features.push_back(0 <= feature && feature < shape.features ? before + feature : -1);
      }
    }
    before += shape.features;
  }
  return features;
}

int64_t merge_of(const std::vector<ItemShape>& items) {
  return items.empty() ? 1 : items.front().merge;
}

}  // namespace

std::vector<Segment> segments_of_items(const std::vector<ItemShape>& items) {
  std::vector<Segment> segments;
  int64_t start = 0;
  for (const ItemShape& item : items) {
    const int64_t end = start + item.tokens;
    segments.push_back({start, item.tokens - item.apart});
    for (start = end - item.apart; start < end; ++start) segments.push_back({start, 1});
  }
  return segments;
}

ItemRow::ItemRow(const std::vector<ItemShape>& all, const std::vector<int64_t>& items,
                 const std::string& encoder, const ReplicaLayout& replica)
    : shapes_(chosen(all, items)),
      starts_(starts_of_items(shapes_)),
      segments_(segments_of_items(shapes_)),
      visible_(visible_segments(segments_)),
      features_(features_of_tokens(all, items)),
      layout_(visible_, replica.sharding(encoder), replica.grid(encoder).tp, merge_of(all)) {
  for (const ItemShape& shape : all)
    ZEA_ASSERT(shape.merge == merge_of(all) && shape.first % shape.merge == 0);
}

size_t ItemRow::item_of(int64_t token) const {
  return static_cast<size_t>(std::ranges::upper_bound(starts_, token) - starts_.begin()) - 1;
}

TokenRuns ItemRow::features(const TokenRuns& runs) const {
  return numbered(runs, [this](int64_t token) { return feature(token); });
}

}  // namespace zea
