// SPDX-License-Identifier: Apache-2.0
// Operations of unit_forward.hpp over rows: how many each value has, and how many pairs of a query
// and a key attention has. What counts products is derived from it.
#pragma once

#include "spec/passing_ops.hpp"

namespace zea::detail {

/// What a unit works on: tokens of text, or items of its encoder.
struct UnitWork {
  int64_t count;
  ItemShape item = {};  ///< of each; of text unused

  /// So many tokens of text; of an encoder's unit as many items as fit into them, one at least.
  static UnitWork of_text(const ModelSpec& model, const UnitSpec& unit, int64_t tokens);
};

/// An item like `item` with so many times its tokens (tiles, where it has several).
ItemShape times_the_tokens(ItemShape item, int64_t times);

/// The rows of a unit.
struct UnitRowCounts {
  int64_t tokens = 0, patches = 0;
  int64_t projected = 0;  ///< those that become features, or of which these are put together
  int64_t features = 0;
  double pairs = 0;  ///< of a query and a key that it sees

  UnitRowCounts() = default;
  UnitRowCounts(const ModelSpec& model, const UnitSpec& unit, const UnitWork& work);
};

/// `V` is an aggregate that begins with its rows.
template <class Ops, class V>
class RowOps : public PassingOps<Ops, V> {
 public:
  RowOps(const ModelSpec& model, const UnitSpec& unit, const UnitRowCounts& count)
      : PassingOps<Ops, V>(unit), model_(model), count_(count) {}
  RowOps(const ModelSpec& model, const UnitSpec& unit, const UnitWork& work)
      : RowOps(model, unit, UnitRowCounts(model, unit, work)) {}

  V input(size_t) { return {count_.tokens}; }
  V patches() { return {count_.patches}; }
  V columns() { return {2 * count_.tokens}; }
  V features() { return {count_.projected}; }
  V windows(V x) { return with_rows(x, x.rows / 2); }
  V side_by_side(V x, int64_t count) { return with_rows(x, x.rows / count); }

 protected:
  static V with_rows(V x, int64_t rows) {
    x.rows = rows;
    return x;
  }

  const ModelSpec& model_;
  const UnitRowCounts count_;
};

}  // namespace zea::detail
