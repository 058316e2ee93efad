// SPDX-License-Identifier: Apache-2.0
// The elements that a rank sends to the ranks that share experts with it. Their number is exact for
// all-gather and reduce-scatter. With all-to-all it depends on routing: this is the expected number
// if all choices of experts are equally likely. A run counts the bytes that it sends.
#pragma once

#include <vector>

#include "deck/hardware.hpp"
#include "layout/axis.hpp"
#include "layout/token_layout.hpp"
#include "spec/module_spec.hpp"

namespace zea::detail {

struct ExpertCall {
  Axis axis;
  CollectiveKind kind;
  int64_t elements;
};

/// A rank, and the rows of the ranks that share the experts of a mixture with it. tp ranks send
/// each other nothing here, since all of them have the same rows. Each tp rank sends rows only to
/// the ranks with its own tp coordinate along cp and dp_shard: the rows that choose their experts.
struct ExpertGroup {
  const ModuleGrid& grid;
  const Coordinate& rank;
  const ExpertRows& rows;
  const RouterSpec& router;

  /// Calls that send rows of `width` elements to the ranks of their experts, in order.
  std::vector<ExpertCall> sent(int64_t width) const;
  /// Calls that return rows of `width` elements, summed, to the ranks of their tokens.
  std::vector<ExpertCall> returned(int64_t width) const;
  /// Exchanges of row counts before an all-to-all; empty for all-gather, whose sizes are planned.
  std::vector<ExpertCall> counts() const;

 private:
  /// Calls visit(axis, rows of each rank along it, this rank's index among them, the share of
  /// tokens that are sent to each).
  void each_axis(const auto& visit) const;
};

}  // namespace zea::detail
