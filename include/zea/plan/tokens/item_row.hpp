// SPDX-License-Identifier: Apache-2.0
// The tokens of an encoder's items (images, clips of sound), one item after the other, on the ranks
// that share them.
#pragma once

#include <vector>

#include "zea/plan/model/model_spec.hpp"
#include "zea/plan/tokens/token_layout.hpp"
#include "zea/plan/tokens/visibility.hpp"

namespace zea {

class ItemRow {
 public:
  /// So many items of `encoder`, each of `tokens` tokens.
  ItemRow(int64_t items, int64_t tokens, const std::string& encoder, const ReplicaLayout& replica);

  /// An item each.
  const std::vector<Segment>& segments() const { return segments_; }
  const Visibility& visible() const { return visible_; }
  const TokenLayout& layout() const { return layout_; }

 private:
  std::vector<Segment> segments_;
  Visibility visible_;
  TokenLayout layout_;
};

}  // namespace zea
