// SPDX-License-Identifier: Apache-2.0
// Every rank distributes rows, samples and items alone: all must get the same result, or they would
// wait for tokens that nobody sends.
#include <gtest/gtest.h>

#include "comm/collectives.hpp"
#include "layout/context_plan.hpp"
#include "schedule/step_plan.hpp"
#include "support/mpi_main.hpp"
#include "support/random_row.hpp"

namespace zea::test_dealing {
namespace {

using Numbers = std::vector<int64_t>;

void append_dealt(Numbers& numbers, const Visibility& row, const ContextOptions& options) {
  for (const std::vector<TokenRange>& ranges : shard_tokens(row, options)) {
    numbers.push_back(static_cast<int64_t>(ranges.size()));
    for (const TokenRange& range : ranges) numbers.insert(numbers.end(), {range.begin, range.end});
  }
}

/// Equal samples have equal costs, so their order is up to the algorithm.
Numbers dealt_tokens(uint64_t seed) {
  std::vector<MaskWord> words = testing::random_row(400, 11, seed);
  const auto samples = static_cast<int64_t>(words.size());
  for (int64_t sample = 0; sample < 20; ++sample)
    words.insert(words.end(), 8, make_mask_word(samples + sample, kModalityText, 0));
  const Visibility row = visible_text(words, true);
  Numbers numbers;
  for (const auto kind :
       {TokenDistribution::Uniform, TokenDistribution::Zigzag, TokenDistribution::MakespanMin})
    for (const KvExchange exchange : {KvExchange::Gather, KvExchange::Ring})
      for (const int inner : {1, 2})
        append_dealt(numbers, row,
                     {.ranks = 6,
                      .inner = inner,
                      .exchange = exchange,
                      .distribution = {.kind = kind, .block = 8, .linear_tiles_per_token = 0.5}});
  return numbers;
}

/// Samples with few different lengths, so that many cost the same.
Numbers dealt_samples(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<SampleIndex> index(64);
  Numbers ids;
  for (SampleIndex& sample : index) {
    sample.tokens = sample.targets = 4 + static_cast<int64_t>(random() % 4);
    ids.push_back(static_cast<int64_t>(ids.size()));
  }
  StepPlanOptions options;
  options.replicas = 3;
  options.row_tokens = 16;
  options.packing = options.balance = true;
  Numbers numbers;
  for (const auto& replica : make_step_plan(1, ids, index, options).replicas)
    for (const MicrobatchPlan& part : replica) {
      numbers.push_back(static_cast<int64_t>(part.samples.size()));
      numbers.insert(numbers.end(), part.samples.begin(), part.samples.end());
    }
  return numbers;
}

/// Rank 0's, on every rank.
Numbers of_root(Collectives& ranks, Numbers numbers) {
  auto length = static_cast<int64_t>(numbers.size());
  ranks.broadcast(&length, 1, DType::Int64, 0).wait();
  numbers.resize(length);
  ranks.broadcast(numbers.data(), length, DType::Int64, 0).wait();
  return numbers;
}

class Dealing : public ::testing::TestWithParam<Numbers (*)(uint64_t)> {};

TEST_P(Dealing, IsTheSameOnAllRanksAndEveryTime) {
  const auto ranks = make_mpi_collectives(testing::first_ranks(testing::world().size()));
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Numbers own = GetParam()(seed);
    ASSERT_FALSE(own.empty());
    EXPECT_EQ(own, of_root(*ranks, own)) << "seed " << seed;
    EXPECT_EQ(own, GetParam()(seed)) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Dealing, ::testing::Values(&dealt_tokens, &dealt_samples));

}  // namespace
}  // namespace zea::test_dealing
