// SPDX-License-Identifier: Apache-2.0
// The volume that a rank sends to the ranks that share experts with it. By all-gather and
// reduce-scatter it is exact. By all-to-all it depends on what routers choose, so it is the
// expected one if all choices are equally likely; a run counts what it sends.
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

/// A rank and the rows of those that share the experts of a mixture with it.
struct ExpertGroup {
  const ModuleGrid& grid;
  const Coordinate& rank;
  const ExpertRows& rows;
  const RouterSpec& router;

  /// Rows of `width` elements to the ranks of their experts, in the order of calls.
  std::vector<ExpertCall> sent(int64_t width) const;
  /// Rows of `width` elements, summed, to the ranks of their tokens.
  std::vector<ExpertCall> returned(int64_t width) const;
  /// How many rows each rank gets; none where that is planned.
  std::vector<ExpertCall> counts() const;

 private:
  /// Calls visit(axis, rows of each rank along it, this one's place, the share of tokens that go to
  /// each).
  void each_axis(const auto& visit) const;
};

}  // namespace zea::detail
