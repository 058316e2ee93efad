// SPDX-License-Identifier: Apache-2.0
// The tokens of images, one image after the other, on the ranks that share them.
#pragma once

#include <vector>

#include "zea/plan/model_spec.hpp"
#include "zea/plan/token_layout.hpp"
#include "zea/plan/visibility.hpp"

namespace zea {

class ImageRow {
 public:
  ImageRow(int64_t images, const VisionConfig& vision, const ReplicaLayout& replica);

  /// An image each.
  const std::vector<Segment>& segments() const { return segments_; }
  const Visibility& visible() const { return visible_; }
  const TokenLayout& layout() const { return layout_; }

 private:
  std::vector<Segment> segments_;
  Visibility visible_;
  TokenLayout layout_;
};

}  // namespace zea
