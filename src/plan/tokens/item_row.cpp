// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/tokens/item_row.hpp"

#include "zea/core/error.hpp"

namespace zea {
namespace {

std::vector<Segment> segments_of_items(const std::vector<ItemShape>& all,
                                       const std::vector<int64_t>& items) {
  std::vector<Segment> segments;
  int64_t start = 0;
  for (int64_t item : items) {
    segments.push_back({start, all[item].tokens});
    start += all[item].tokens;
  }
  return segments;
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

ItemRow::ItemRow(const std::vector<ItemShape>& all, const std::vector<int64_t>& items,
                 const std::string& encoder, const ReplicaLayout& replica)
    : segments_(segments_of_items(all, items)),
      visible_(visible_segments(segments_)),
      features_(features_of_tokens(all, items)),
      layout_(visible_, replica.sharding(encoder), replica.grid(encoder).tp, merge_of(all)) {
  for (const ItemShape& shape : all)
    ZEA_ASSERT(shape.merge == merge_of(all) && shape.first % shape.merge == 0);
}

TokenRuns ItemRow::features(const TokenRuns& runs) const {
  return numbered(runs, [this](int64_t token) { return feature(token); });
}

}  // namespace zea
