// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention_tiles.hpp"

#include <algorithm>
#include <numeric>

namespace zea::detail {
namespace {

using Indices = std::vector<size_t>;
using Slices = std::vector<AttentionSlice>;

/// Sets of slices, merged as they turn out to share rows.
class SliceSets {
 public:
  explicit SliceSets(size_t count) : parent_(count) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
  }
  size_t set_of(size_t slice) {
    while (parent_[slice] != slice) slice = parent_[slice] = parent_[parent_[slice]];
    return slice;
  }
  void merge(size_t a, size_t b) { parent_[set_of(a)] = set_of(b); }

 private:
  Indices parent_;
};

/// Rows of slices by a pair of members: the queries, or the keys.
struct Side {
  int64_t AttentionSlice::*begin;
  int64_t AttentionSlice::*count;

  int64_t end(const AttentionSlice& slice) const { return slice.*begin + slice.*count; }
};
constexpr Side kQueries{&AttentionSlice::query, &AttentionSlice::queries};
constexpr Side kKeys{&AttentionSlice::key, &AttentionSlice::keys};

Indices in_order(const Slices& slices, Indices which, const Side& side) {
  std::stable_sort(which.begin(), which.end(), [&](size_t a, size_t b) {
    return slices[a].*side.begin < slices[b].*side.begin;
  });
  return which;
}

void merge_overlaps(const Slices& slices, const Indices& all, const Side& side, SliceSets& sets) {
  const Indices order = in_order(slices, all, side);
  int64_t end = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const AttentionSlice& slice = slices[order[i]];
    if (i > 0 && slice.*side.begin < end) sets.merge(order[i], order[i - 1]);
    end = std::max(end, side.end(slice));
  }
}

/// The rows that these slices cover, where they touch as one.
std::vector<KeyRange> covered(const Slices& slices, const Indices& which, const Side& side) {
  std::vector<KeyRange> ranges;
  for (size_t index : in_order(slices, which, side)) {
    const int64_t begin = slices[index].*side.begin, end = side.end(slices[index]);
    if (ranges.empty() || begin > ranges.back().key + ranges.back().keys) {
      const int64_t row = ranges.empty() ? 0 : ranges.back().sum_row + ranges.back().keys;
      ranges.push_back({begin, 0, row});
    }
    KeyRange& last = ranges.back();
    last.keys = std::max(last.keys, end - last.key);
  }
  return ranges;
}

const KeyRange& range_of(const std::vector<KeyRange>& ranges, int64_t row) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), row,
                       [](int64_t value, const KeyRange& range) { return value < range.key; });
  return *(after - 1);
}

/// Returns the size of tiles of about equal size: a last one of few queries would cost as much as a
/// vector of them.
int64_t tile_size(int64_t queries) {
  constexpr int64_t kStep = 16;
  const int64_t tiles = (queries + kTileQueries - 1) / kTileQueries;
  return (queries + tiles * kStep - 1) / (tiles * kStep) * kStep;
}

TilePiece make_piece(const AttentionSlice& slice, const QueryTile& tile, int64_t sum_row) {
  const int64_t offset = tile.query - slice.query;
  TilePiece piece{.first = std::max<int64_t>(0, -offset),
                  .end = std::min(tile.queries, slice.queries - offset),
                  .key = slice.key,
                  .keys = slice.keys,
                  .sum_row = sum_row,
                  .mask = slice.mask,
                  .offset = offset};
  if (slice.mask == SliceMask::Causal) piece.keys = std::min(piece.keys, piece.end + offset);
  if (slice.mask == SliceMask::AntiCausal) {
    const int64_t hidden = piece.first + offset;
    piece.key += hidden;
    piece.keys -= hidden;
    piece.sum_row += hidden;
    piece.offset -= hidden;
  }
  return piece;
}

class Tiler {
 public:
  explicit Tiler(const Slices& slices) : slices_(slices) {}

  void add_group(const Indices& which) {
    const auto first_tile = static_cast<int64_t>(result_.tiles.size());
    const std::vector<KeyRange> keys = covered(slices_, which, kKeys);
    const std::vector<KeyRange> queries = covered(slices_, which, kQueries);
    std::vector<size_t> first_of_range;
    for (const KeyRange& range : queries) {
      first_of_range.push_back(result_.tiles.size());
      add_tiles(range);
    }
    for (size_t index : in_order(slices_, which, kKeys)) {
      const AttentionSlice& slice = slices_[index];
      const KeyRange& key_range = range_of(keys, slice.key);
      const KeyRange& range = range_of(queries, slice.query);
      const int64_t size = tile_size(range.keys);
      size_t tile = first_of_range[&range - queries.data()] + (slice.query - range.key) / size;
      for (; tile < result_.tiles.size(); ++tile) {
        QueryTile& target = result_.tiles[tile];
        if (target.query >= slice.query + slice.queries) break;
        target.pieces.push_back(
            make_piece(slice, target, key_range.sum_row + slice.key - key_range.key));
      }
    }
    result_.groups.push_back({first_tile, static_cast<int64_t>(result_.tiles.size()), keys});
  }

  AttentionTiles take() { return std::move(result_); }

 private:
  void add_tiles(const KeyRange& range) {
    const int64_t size = tile_size(range.keys), end = range.key + range.keys;
    for (int64_t query = range.key; query < end; query += size)
      result_.tiles.push_back({query, std::min(size, end - query), {}});
  }

  const Slices& slices_;
  AttentionTiles result_;
};

}  // namespace

AttentionTiles make_attention_tiles(const Slices& slices) {
  Indices all;
  for (size_t i = 0; i < slices.size(); ++i)
    if (slices[i].queries > 0 && slices[i].keys > 0) all.push_back(i);
  SliceSets sets(slices.size());
  merge_overlaps(slices, all, kQueries, sets);
  merge_overlaps(slices, all, kKeys, sets);
  std::vector<Indices> groups;
  std::vector<size_t> group_of(slices.size(), slices.size());
  for (size_t index : in_order(slices, all, kQueries)) {
    size_t& group = group_of[sets.set_of(index)];
    if (group == slices.size()) group = groups.size(), groups.emplace_back();
    groups[group].push_back(index);
  }
  Tiler tiler(slices);
  for (const Indices& group : groups) tiler.add_group(group);
  return tiler.take();
}

}  // namespace zea::detail
