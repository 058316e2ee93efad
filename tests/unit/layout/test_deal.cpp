// SPDX-License-Identifier: Apache-2.0
#include "layout/item_row.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace zea::test_deal {
namespace {

int64_t largest_load(const std::vector<int64_t>& costs,
                     const std::vector<std::vector<int64_t>>& shares) {
  int64_t largest = 0;
  for (const auto& share : shares) {
    int64_t load = 0;
    for (int64_t position : share) load += costs[position];
    largest = std::max(largest, load);
  }
  return largest;
}

/// The least possible largest load, by trying every distribution.
int64_t best_load(const std::vector<int64_t>& costs, std::vector<int64_t> loads, size_t next = 0) {
  if (next == costs.size()) return *std::max_element(loads.begin(), loads.end());
  int64_t best = std::accumulate(costs.begin(), costs.end(), int64_t{0});
  for (int64_t& load : loads) {
    load += costs[next];
    best = std::min(best, best_load(costs, loads, next + 1));
    load -= costs[next];
  }
  return best;
}

TEST(Deal, GivesEveryPositionOnceWithinTheBoundOfTheBest) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> costs(random() % 8);
    for (int64_t& cost : costs) cost = static_cast<int64_t>(random() % 10);
    const int takers = 1 + static_cast<int>(random() % 4);

    const auto shares = distribute_by_cost(costs, takers);

    ASSERT_EQ(static_cast<int>(shares.size()), takers);
    std::vector<int64_t> all;
    for (const auto& share : shares) {
      EXPECT_TRUE(std::is_sorted(share.begin(), share.end()));
      all.insert(all.end(), share.begin(), share.end());
    }
    std::sort(all.begin(), all.end());
    std::vector<int64_t> positions(costs.size());
    std::iota(positions.begin(), positions.end(), int64_t{0});
    EXPECT_EQ(all, positions);
    // 4/3 - 1/(3m) of the best (Graham 1969).
    EXPECT_LE(3 * takers * largest_load(costs, shares),
              (4 * takers - 1) * best_load(costs, std::vector<int64_t>(takers, 0)));
  }
}

/// An encoder with a block that multiplies 6 times for a token, and twice for each that it sees.
ModelSpec model_of_one_block() {
  EncoderSpec encoder;
  encoder.block.hidden = encoder.block.mlp().intermediate = 1;
  encoder.block.attention().heads = {1, 1, 1};
  UnitSpec unit{};
  unit.kind = UnitKind::Block;
  unit.encoder = 0;
  ModelSpec model;
  model.encoders.push_back(encoder);
  model.units.push_back(unit);
  return model;
}

TEST(Deal, WhetherATakerGetsAnythingIsKnownFromTheNumberOfItems) {
  std::mt19937_64 random(4);
  const ModelSpec model = model_of_one_block();
  for (int round = 0; round < 100; ++round) {
    std::vector<ItemShape> items(random() % 7);
    for (ItemShape& item : items) item.tokens = 1 + static_cast<int64_t>(random() % 50);
    const int takers = 1 + static_cast<int>(random() % 5);

    const auto shares = distribute_items(items, model, 0, takers);

    for (int taker = 0; taker < takers; ++taker)
      EXPECT_EQ(receives_any(static_cast<int64_t>(items.size()), taker), !shares[taker].empty());
  }
}

TEST(Deal, CountsWhatBlocksSeeInWindows) {
  ModelSpec model = model_of_one_block();
  const std::vector<ItemShape> items{{.tokens = 8, .merge = 1},
                                     {.tokens = 5, .merge = 1},
                                     {.tokens = 5, .merge = 1},
                                     {.tokens = 5, .merge = 1}};
  // 8 tokens that see 8 cost more than two times 5 that see 5, but less where each sees itself.
  EXPECT_EQ(distribute_items(items, model, 0, 2)[0], std::vector<int64_t>{0});
  model.encoders[0].block.attention().window = 1;
  EXPECT_EQ(distribute_items(items, model, 0, 2)[0], (std::vector<int64_t>{0, 3}));
}

TEST(Deal, GivesTheFirstOfEqualsFirst) {
  using Shares = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(distribute_by_cost({5, 5, 5, 5}, 2), (Shares{{0, 2}, {1, 3}}));
  EXPECT_EQ(distribute_by_cost({1, 2, 9}, 2), (Shares{{2}, {0, 1}}));
  EXPECT_EQ(distribute_by_cost({4}, 3), (Shares{{0}, {}, {}}));
  EXPECT_EQ(distribute_by_cost({}, 2), (Shares{{}, {}}));
}

}  // namespace
}  // namespace zea::test_deal
