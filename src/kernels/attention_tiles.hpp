// SPDX-License-Identifier: Apache-2.0
// Attention over slices cut into tiles of queries. A tile meets the keys of all slices that its
// queries are in, one piece after the other, so sums over several slices stay in the tile. Tiles
// whose slices share queries or keys form a group: gradients of different groups touch different
// rows.
#pragma once

#include <cstdint>
#include <vector>

#include "core/attention_slice.hpp"

namespace zea::detail {

inline constexpr int64_t kTileQueries = 96;

/// The part of a slice that one tile's queries see.
struct TilePiece {
  int64_t first, end;  ///< queries of the tile
  int64_t key, keys;
  int64_t sum_row;  ///< the first key's index in the group
  SliceMask mask;
  /// Causal: the i-th query of the tile sees the first i + 1 + offset keys; anti-causal: it sees
  /// those from i + offset on.
  int64_t offset;
};

struct QueryTile {
  int64_t query, queries;
  std::vector<TilePiece> pieces;
};

/// Keys [key, key + keys) of a tensor are [sum_row, sum_row + keys) of a group.
struct KeyRange {
  int64_t key, keys, sum_row;
};

struct TileGroup {
  int64_t first_tile, end_tile;
  std::vector<KeyRange> ranges;  ///< ascending in both

  int64_t keys() const { return ranges.back().sum_row + ranges.back().keys; }
};

struct AttentionTiles {
  std::vector<QueryTile> tiles;
  std::vector<TileGroup> groups;
};

AttentionTiles make_attention_tiles(const std::vector<AttentionSlice>& slices);

}  // namespace zea::detail
