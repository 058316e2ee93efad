// SPDX-License-Identifier: Apache-2.0
// How items of encoders are distributed to ranks, and the rows that they form.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "layout/token_layout.hpp"
#include "layout/visibility.hpp"
#include "spec/model_spec.hpp"

namespace zea {

// Dealing things of different cost to equal takers: the costliest first, each to the one that has
// the least so far (LPT; Graham 1969).

/// The positions of `costs` that each of `takers` gets, ascending; of equals the first comes first.
std::vector<std::vector<int64_t>> distribute_by_cost(const std::vector<int64_t>& costs, int takers);

/// The items of an encoder in a microbatch that each of the `takers` dp_module ranks encodes, by
/// what its blocks multiply for them. `encoder`: its index.
std::vector<std::vector<int64_t>> distribute_items(const std::vector<ItemShape>& items,
                                                   const ModelSpec& model, int encoder, int takers);

/// Whether that taker gets any of so many, whatever they cost: nobody gets a second one before all
/// have one, in order.
constexpr bool receives_any(int64_t items, int taker) {
  return items > taker;
}

// The tokens of an encoder's items (images, clips of sound), one item after the other, on the ranks
// that share them, and the features that they become.

/// One for each tile of `items`, or each window of an item, and one for each token that stands
/// apart in it.
std::vector<Segment> segments_of_items(const std::vector<ItemShape>& items, bool in_windows);

class ItemRow {
 public:
  /// `items`, ascending, of the items `all` of `encoder` in a microbatch, each with a shape of its
  /// own; merge is the same in all. The tokens of a feature stay on one rank.
  ItemRow(const std::vector<ItemShape>& all, const std::vector<int64_t>& items,
          const std::string& encoder, const ReplicaLayout& replica);

  /// Returns the segments of tokens that see all of their item, or their window of it.
  std::vector<Segment> segments(bool in_windows = false) const {
    return segments_of_items(shapes_, in_windows);
  }
  Visibility visible(bool in_windows = false) const {
    return visible_segments(segments(in_windows));
  }
  const TokenLayout& layout() const { return layout_; }

  /// A token's place in its item, or in the tile of it, and that item's among those here.
  int64_t position(int64_t token) const { return token - starts_[item_of(token)]; }
  int64_t position_in_tile(int64_t token) const {
    const ItemShape& item = shape(item_of(token));
    const int64_t place = position(token), tile = item.tile_tokens();
    return item.is_row_end(place) ? tile : place % tile;  // behind all of it
  }
  size_t item_of(int64_t token) const;
  const ItemShape& shape(size_t item) const { return shapes_[item]; }
  const std::vector<ItemShape>& shapes() const { return shapes_; }
  /// The items here, ascending, that the tokens of `runs` are of.
  std::vector<int64_t> items_of(const TokenRuns& runs) const;
  /// The feature, by number in the microbatch, that a token is a part of; -1: of none.
  int64_t feature(int64_t token) const;
  /// The rows that a projector makes of the tokens of `runs`, by number in the microbatch,
  /// ascending: along the tokens they may fall. They are the features, except where
  /// features are interpolated from several rows.
  TokenRuns projected(const TokenRuns& runs) const;
  /// Returns the features that the tokens of `runs` become, or become a part of.
  TokenRuns features(const TokenRuns& runs) const;
  /// The projector's rows that a feature is interpolated from, by number in the microbatch.
  std::array<TableShare, 4> feature_shares(int64_t feature) const;

 private:
  std::vector<ItemShape> shapes_;
  std::vector<int64_t> starts_;                       ///< of the items
  std::vector<int64_t> first_rows_, first_features_;  ///< of them, by number in the microbatch
  std::vector<int64_t> rows_;                         ///< of the projector, of each token
  TokenLayout layout_;
};

/// Returns for each rank which part it makes of the features that it has rows of
/// (plan_row_exchange).
std::vector<int> feature_parts(const EncoderSpec& encoder, const ReplicaLayout& replica);

/// The items of an encoder in a microbatch, by number among `all` of them, ascending, of which this
/// rank of the replica holds tokens: only these are decoded for it. Empty where it has no part of
/// the encoder.
std::vector<int64_t> items_held(const std::vector<ItemShape>& all, const ModelSpec& model,
                                int encoder, const ReplicaLayout& replica);

/// The numbers of 0 or more that `number` gives the tokens of `runs`, each once; they do not fall
/// along the tokens.
template <class Number>
TokenRuns numbered(const TokenRuns& runs, Number number) {
  TokenRuns found;
  for (const TokenRange& run : runs)
    for (int64_t token = run.begin; token < run.end; ++token) {
      const int64_t row = number(token);
      if (row < 0 || (!found.empty() && found.back().end == row + 1)) continue;
      if (!found.empty() && found.back().end == row)
        ++found.back().end;
      else
        found.push_back({row, row + 1});
    }
  return found;
}

}  // namespace zea
