// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/tokens/item_row.hpp"

namespace zea {
namespace {

std::vector<Segment> equal_segments(int64_t count, int64_t length) {
  std::vector<Segment> segments;
  for (int64_t i = 0; i < count; ++i) segments.push_back({i * length, length});
  return segments;
}

}  // namespace

ItemRow::ItemRow(int64_t items, int64_t tokens, const std::string& encoder,
                 const ReplicaLayout& replica)
    : segments_(equal_segments(items, tokens)),
      visible_(visible_segments(segments_)),
      layout_(visible_, replica.sharding(encoder), replica.grid(encoder).tp) {}

}  // namespace zea
