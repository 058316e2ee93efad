// SPDX-License-Identifier: Apache-2.0
#include "zea/plan/image_row.hpp"

namespace zea {
namespace {

std::vector<Segment> equal_segments(int64_t count, int64_t length) {
  std::vector<Segment> segments;
  for (int64_t i = 0; i < count; ++i) segments.push_back({i * length, length});
  return segments;
}

}  // namespace

ImageRow::ImageRow(int64_t images, const VisionConfig& vision, const ReplicaLayout& replica)
    : segments_(equal_segments(images, vision.tokens())),
      visible_(visible_segments(segments_)),
      layout_(visible_, replica.sharding("vision"), replica.grid("vision").tp) {}

}  // namespace zea
