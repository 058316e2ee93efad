// SPDX-License-Identifier: Apache-2.0
#include "layout/deal.hpp"

#include <algorithm>
#include <numeric>

namespace zea {

std::vector<std::vector<int64_t>> deal_by_cost(const std::vector<int64_t>& costs, int takers) {
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

std::vector<std::vector<int64_t>> deal_items(const std::vector<ItemShape>& items,
                                             const ModelSpec& model, int encoder, int takers) {
  const BlockSpec& block = model.encoders[static_cast<size_t>(encoder)].block;
  std::vector<int64_t> layers(block.attention.size(), 0);  // of each way to attend
  for (const UnitSpec& unit : model.units)
    if (unit.encoder == encoder && unit.kind == UnitKind::Block) ++layers.at(unit.attention);
  const int64_t heads = (2 * block.heads.query + 2 * block.heads.key_value) * block.heads.dim;
  const int64_t weights = block.hidden * (heads + (block.gated ? 3 : 2) * block.intermediate);
  const int64_t pair = 2 * block.heads.query * block.heads.dim;
  std::vector<int64_t> costs;
  for (const ItemShape& item : items) {
    int64_t of_token = 1;  // nothing is free, not even where no block is read
    for (size_t way = 0; way < layers.size(); ++way)
      of_token += layers[way] * (weights + pair * item.most_seen(block.attention[way].window));
    costs.push_back(item.tokens * of_token);
  }
  return deal_by_cost(costs, takers);
}

}  // namespace zea
