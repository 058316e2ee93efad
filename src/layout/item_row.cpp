// SPDX-License-Identifier: Apache-2.0
#include "layout/item_row.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"

namespace zea {
namespace {

std::vector<ItemShape> chosen(const std::vector<ItemShape>& all,
                              const std::vector<int64_t>& items) {
  std::vector<ItemShape> shapes;
  for (int64_t item : items) shapes.push_back(all[item]);
  return shapes;
}

std::vector<int64_t> starts_of_items(const std::vector<ItemShape>& items) {
  std::vector<int64_t> starts;
  int64_t start = 0;
  for (const ItemShape& item : items) {
    starts.push_back(start);
    start += item.tokens;
  }
  return starts;
}

/// For each of `items` how many `of` all items before it have.
template <class Of>
std::vector<int64_t> before_items(const std::vector<ItemShape>& all,
                                  const std::vector<int64_t>& items, Of of) {
  std::vector<int64_t> before;
  int64_t sum = 0;
  size_t item = 0;
  for (const int64_t own : items) {
    for (; item < static_cast<size_t>(own); ++item) sum += of(all[item]);
    before.push_back(sum);
  }
  return before;
}

/// For each token of items the number of the projector's row that it is a part of; -1: of none.
std::vector<int64_t> rows_of_tokens(const std::vector<ItemShape>& items,
                                    const std::vector<int64_t>& first_rows) {
  std::vector<int64_t> rows;
  for (size_t item = 0; item < items.size(); ++item)
    for (int64_t token = 0; token < items[item].tokens; ++token) {
      const int64_t row = items[item].source_of(token);
      rows.push_back(row < 0 ? -1 : first_rows[item] + row);
    }
  return rows;
}

bool is_resampled(const ItemShape& shape) {
  return shape.is_interpolated();
}

int64_t merge_of(const std::vector<ItemShape>& items) {
  return items.empty() ? 1 : items.front().merge;
}

/// Returns the end of each group of tokens that become one feature; empty: each token is a group.
std::vector<int64_t> ends_of_groups(const std::vector<ItemShape>& items) {
  if (std::ranges::all_of(items, [](const ItemShape& item) { return item.feature_tokens() == 1; }))
    return {};
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (const ItemShape& item : items)
    for (int64_t token = 0; token < item.tokens; token += item.feature_tokens())
      ends.push_back(end += item.feature_tokens());
  return ends;
}

}  // namespace

std::vector<Segment> segments_of_items(const std::vector<ItemShape>& items, bool in_windows) {
  std::vector<Segment> segments;
  int64_t start = 0;
  const auto append = [&](int64_t length) {
    segments.push_back({start, length});
    start += length;
  };
  for (const ItemShape& item : items)
    for (int64_t tile = 0; tile < item.tiles; ++tile) {
      if (in_windows && item.has_windows())
        std::ranges::for_each(item.windows(), append);
      else
        append(item.tile_tokens() - item.padding_tokens);
      for (int64_t i = 0; i < item.padding_tokens; ++i) append(1);
      const bool is_last = tile + 1 == item.tiles;
      for (int64_t i = 0; is_last && i < item.row_ends(); ++i) append(1);
    }
  return segments;
}

ItemRow::ItemRow(const std::vector<ItemShape>& all, const std::vector<int64_t>& items,
                 const std::string& encoder, const ReplicaLayout& replica)
    : shapes_(chosen(all, items)),
      starts_(starts_of_items(shapes_)),
      first_rows_(before_items(
          all, items, [](const ItemShape& shape) { return shape.projected() / shape.merge; })),
      first_features_(
          before_items(all, items, [](const ItemShape& shape) { return shape.features; })),
      rows_(rows_of_tokens(shapes_, first_rows_)),
      layout_(visible(), replica.sharding(encoder), replica.grid(encoder).tp,
              ends_of_groups(shapes_)) {
  for (const ItemShape& shape : all)
    ZEA_ASSERT(shape.merge == merge_of(all) && shape.first % shape.merge == 0);
}

size_t ItemRow::item_of(int64_t token) const {
  return static_cast<size_t>(std::ranges::upper_bound(starts_, token) - starts_.begin()) - 1;
}

std::vector<int64_t> ItemRow::items_of(const TokenRuns& runs) const {
  std::vector<bool> is_there(shapes_.size(), false);
  for (const TokenRange& run : runs)
    for (int64_t token = run.begin; token < run.end;) {
      const size_t item = item_of(token);
      is_there[item] = true;
      token = starts_[item] + shapes_[item].tokens;
    }
  std::vector<int64_t> items;
  for (size_t item = 0; item < is_there.size(); ++item)
    if (is_there[item]) items.push_back(static_cast<int64_t>(item));
  return items;
}

int64_t ItemRow::feature(int64_t token) const {
  const size_t item = item_of(token);
  const int64_t feature = shapes_[item].feature_of(position(token));
  return feature < 0 ? -1 : first_features_[item] + feature;
}

TokenRuns ItemRow::projected(const TokenRuns& runs) const {
  std::vector<int64_t> made;
  for (const TokenRange& run : runs)
    for (int64_t token = run.begin; token < run.end; ++token)
      if (rows_[token] >= 0) made.push_back(rows_[token]);
  std::ranges::sort(made);
  return numbered({{0, std::ssize(made)}}, [&](int64_t i) { return made[i]; });
}

TokenRuns ItemRow::features(const TokenRuns& runs) const {
  TokenRuns rows = projected(runs);
  if (std::ranges::none_of(shapes_, is_resampled) && first_rows_ == first_features_) return rows;
  const std::vector<int64_t> here = numbers_of(rows);
  const auto is_here = [&](const TableShare& of) {
    return of.share > 0 && std::ranges::binary_search(here, of.row);
  };
  TokenRuns all;
  for (size_t item = 0; item < shapes_.size(); ++item)
    all.push_back({first_features_[item], first_features_[item] + shapes_[item].features});
  return numbered(all, [&](int64_t feature) {
    return std::ranges::any_of(feature_shares(feature), is_here) ? feature : -1;
  });
}

std::array<TableShare, 4> ItemRow::feature_shares(int64_t feature) const {
  const auto next = std::ranges::upper_bound(first_features_, feature);
  const auto item = static_cast<size_t>(next - first_features_.begin()) - 1;
  std::array<TableShare, 4> shares = shapes_[item].feature_shares(feature - first_features_[item]);
  for (TableShare& each : shares) each.row += first_rows_[item];
  return shares;
}

std::vector<int> feature_parts(const EncoderSpec& encoder, const ReplicaLayout& replica) {
  if (!encoder.projector.shrinks) return {};
  return replica.token_shares(encoder.name);
}

std::vector<int64_t> items_held(const std::vector<ItemShape>& all, const ModelSpec& model,
                                int encoder, const ReplicaLayout& replica) {
  const std::string& name = model.encoders[static_cast<size_t>(encoder)].name;
  if (!replica.has(replica.rank, name)) return {};
  const Coordinate coordinate = replica.coordinate(replica.rank, name);
  const std::vector<int64_t> dealt =
      distribute_items(all, model, encoder,
                       replica.grid(name).encoder_dp)[static_cast<size_t>(coordinate.encoder_dp)];
  const ItemRow row(all, dealt, name, replica);
  std::vector<int64_t> held;
  for (const int64_t item : row.items_of(row.layout().held(coordinate.cp, coordinate.tp)))
    held.push_back(dealt[static_cast<size_t>(item)]);
  return held;
}

std::vector<std::vector<int64_t>> distribute_by_cost(const std::vector<int64_t>& costs,
                                                     int takers) {
  std::vector<int64_t> order(costs.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return costs[a] > costs[b]; });
  std::vector<int64_t> load(takers, 0);
  std::vector<std::vector<int64_t>> shares(takers);
  for (int64_t position : order) {
    const auto lightest = std::min_element(load.begin(), load.end()) - load.begin();
    load[lightest] += costs[position];
    shares[lightest].push_back(position);
  }
  for (auto& share : shares) std::sort(share.begin(), share.end());
  return shares;
}

std::vector<std::vector<int64_t>> distribute_items(const std::vector<ItemShape>& items,
                                                   const ModelSpec& model, int encoder,
                                                   int takers) {
  const BlockSpec& block = model.encoders[static_cast<size_t>(encoder)].block;
  const std::vector<AttentionSpec> ways = block.attentions();
  std::vector<int64_t> layers(ways.size(), 0);  // of each way to attend
  for (const UnitSpec& unit : model.units)
    if (unit.encoder == encoder && unit.kind == UnitKind::Block) ++layers.at(unit.mixer);
  const auto& [query, key_value, dim] = block.attention().heads;
  const int64_t heads = (2 * query + 2 * key_value) * dim;
  const MlpSpec& mlp = block.mlp();
  const int64_t weights = block.hidden * (heads + (mlp.gated ? 3 : 2) * mlp.intermediate);
  const int64_t pair = 2 * query * dim;
  std::vector<int64_t> costs;
  for (const ItemShape& item : items) {
    int64_t of_token = 1;  // nothing is free, not even where no block is read
    for (size_t way = 0; way < layers.size(); ++way)
      of_token += layers[way] * (weights + pair * item.most_seen(ways[way].window));
    costs.push_back(item.tokens * of_token);
  }
  return distribute_by_cost(costs, takers);
}

}  // namespace zea
