// SPDX-License-Identifier: Apache-2.0
// The declarations of attention: over the keys of all cp ranks, with sinks, and of latent heads.
#pragma once

#include "spec/operation_needs.hpp"

namespace zea::detail {

/// The heads of a unit on one rank.
struct HeadsPart {
  const ModelSpec& model;
  const UnitSpec& unit;
  const UnitSizes& sizes;
  const UnitShare& share;
  ElementBytes bytes;

  const AttentionSpec& spec() const { return model.attention(unit); }
  /// Returns the heads of this tp rank.
  HeadShape heads() const;
};

/// Declares attention of the rows `needs` has.
void declare_attention(const HeadsPart& part, bool has_sinks, OperationNeeds& needs);

/// Declares heads that are composed of others: LatentHeads, or ValueColumns.
void declare_copied_heads(const HeadsPart& part, OperationKind kind, OperationNeeds& needs);

}  // namespace zea::detail
