// SPDX-License-Identifier: Apache-2.0
// Pieces of parameters over tp ranks: for random shapes, head counts and vocabularies every element
// of the global tensor is in the piece of each rank that should have it, at the place where an
// independent split puts it.
#include "spec/param_shard.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "support/coverage.hpp"

namespace zea::test_param_shard {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool coin() { return between(0, 1) == 1; }

 private:
  std::mt19937_64 engine_;
};

Shape random_shape(Random& random, size_t dims) {
  Shape shape;
  for (size_t d = 0; d < dims; ++d) shape.push_back(random.between(1, 5));
  return shape;
}

/// A parameter that some numbers of ranks can share: whole, by rows or columns, of one matrix or of
/// several in one, KV heads, or a vocabulary of any size.
ParamSpec random_param(Random& random) {
  ParamSpec param;
  param.shape = random_shape(random, static_cast<size_t>(random.between(1, 4)));
  switch (random.between(0, 3)) {
    case 0:
      break;
    case 1:
      param.tp_sharding = {.dim = 0, .pads = true};
      param.shape[0] = random.between(1, 30);
      break;
    case 2: {
      const int dim = param.shape.size() == 1 ? 0 : static_cast<int>(random.between(0, 1));
      param.tp_sharding = {.dim = dim, .blocks = random.between(1, 12)};
      if (random.coin()) param.tp_sharding.fused_sections = random.between(2, 3);
      param.shape[dim] =
          param.tp_sharding.fused_sections * param.tp_sharding.blocks * random.between(1, 3);
      break;
    }
    default:
      param.tp_sharding = {.dim = 0, .blocks = random.between(1, 8), .replicates_kv = true};
      param.shape[0] = param.tp_sharding.blocks * random.between(1, 3);
  }
  return param;
}

std::string words_of(const ParamSpec& param, int tp) {
  std::string words;
  for (int64_t length : param.shape) words += std::to_string(length) + " ";
  return words + "dim " + std::to_string(param.tp_sharding.dim) + " blocks " +
         std::to_string(param.tp_sharding.blocks) + " fused_sections " +
         std::to_string(param.tp_sharding.fused_sections) +
         (param.tp_sharding.replicates_kv ? " repeats" : "") +
         (param.tp_sharding.pads ? " pads" : "") + " tp " + std::to_string(tp);
}

/// Calls check(param, tp) for many that go together.
template <class Check>
void sweep(Check check) {
  Random random(7);
  int tried = 0;
  for (int round = 0; round < 3000; ++round) {
    const ParamSpec param = random_param(random);
    const int tp = static_cast<int>(random.between(1, 9));
    if (!can_shard(param, tp)) continue;
    ++tried;
    check(param, tp, random);
    if (::testing::Test::HasFatalFailure()) FAIL() << words_of(param, tp);
  }
  EXPECT_GT(tried, 1000);
}

/// Row-major elements of a box of a tensor of `shape`.
std::vector<int64_t> elements_of(const Extent& extent, const Shape& shape) {
  std::vector<int64_t> elements;
  for (const CopyRun& run : copy_runs(extent, whole(shape), extent))
    for (int64_t i = 0; i < run.elements; ++i) elements.push_back(run.source_element + i);
  return elements;
}

/// The global element at each place of a piece, -1 for padding: index by index.
std::vector<int64_t> piece_by_index(const ParamSpec& param, const ParamShard& cut, int tp_rank) {
  std::vector<int64_t> elements;
  Shape index(cut.shape.size(), 0);
  for (int64_t place = 0; place < num_elements(cut.shape); ++place) {
    int64_t element = 0;
    bool is_padding = false;
    for (size_t d = 0; d < index.size(); ++d) {
      int64_t position = index[d];
      if (static_cast<int>(d) == cut.dim) {
        const int64_t fused_sections = param.tp_sharding.fused_sections,
                      share = cut.shape[d] / fused_sections;
        position = index[d] / share * (param.shape[d] / fused_sections) +
                   tp_rank / cut.holders * share + index[d] % share;
      }
      is_padding = is_padding || position >= param.shape[d];
      if (static_cast<int>(d) == param.part.dim) position += param.part.begin;
      element = element * param.tensor_shape()[d] + position;
    }
    elements.push_back(is_padding ? -1 : element);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < cut.shape[d]) break;
      index[d] = 0;
    }
  }
  return elements;
}

/// The parameter as a part of a tensor that has more before and after it, along any dim.
ParamSpec as_part(ParamSpec param, Random& random) {
  const int dim = static_cast<int>(random.between(0, static_cast<int>(param.shape.size()) - 1));
  const int64_t begin = random.between(0, 4);
  param.part = {dim, begin, begin + param.shape[dim] + random.between(0, 4)};
  return param;
}

TEST(ParamShard, BoxesAreWhereAnIndexByIndexCutPutsThem) {
  sweep([](const ParamSpec& whole_param, int tp, Random& random) {
    const ParamSpec param = random.coin() ? as_part(whole_param, random) : whole_param;
    const ParamShard cut = param_shard_of(param, tp);
    const int64_t all = num_elements(cut.shape);
    for (int tp_rank = 0; tp_rank < tp; ++tp_rank) {
      std::vector<int64_t> expected = piece_by_index(param, cut, tp_rank);
      const int64_t begin = random.between(0, all), end = random.between(begin, all);
      std::vector<int64_t> found(all, -1);
      int64_t last = begin;
      for (const PieceBox& box : boxes_of_piece(param, cut, tp_rank, begin, end)) {
        ASSERT_GE(box.begin, last);
        last = box.begin + box.extent.elements();
        ASSERT_LE(last, end);
        ASSERT_FALSE(box.extent.empty());
        const std::vector<int64_t> elements = elements_of(box.extent, param.tensor_shape());
        std::copy(elements.begin(), elements.end(), found.begin() + box.begin);
      }
      std::fill(expected.begin(), expected.begin() + begin, -1);
      std::fill(expected.begin() + end, expected.end(), -1);
      ASSERT_EQ(found, expected);
    }
  });
}

TEST(ParamShard, FirstHoldersCoverEveryElementOnceHoweverTheirPiecesAreSplit) {
  sweep([](const ParamSpec& param, int tp, Random& random) {
    const ParamShard cut = param_shard_of(param, tp);
    std::vector<Extent> boxes;
    for (int tp_rank = 0; tp_rank < tp; ++tp_rank) {
      if (!cut.is_first_holder(tp_rank)) continue;
      const int64_t all = num_elements(cut.shape);
      for (int64_t begin = 0, end; begin < all; begin = end) {
        end = std::min(all, begin + random.between(1, all));
        for (PieceBox& box : boxes_of_piece(param, cut, tp_rank, begin, end))
          boxes.push_back(std::move(box.extent));
      }
    }
    ASSERT_TRUE(testing::covers_exactly_once(param.shape, boxes));
  });
}

TEST(ParamShard, HoldersAreNeighboursWithTheSamePiece) {
  sweep([](const ParamSpec& param, int tp, Random&) {
    const ParamShard cut = param_shard_of(param, tp);
    ASSERT_EQ(tp % cut.holders, 0);
    std::map<std::vector<int64_t>, std::vector<int>> holders;
    for (int tp_rank = 0; tp_rank < tp; ++tp_rank)
      holders[piece_by_index(param, cut, tp_rank)].push_back(tp_rank);
    for (const auto& [piece, ranks] : holders) {
      // Pieces of nothing but padding are equal, and held by nobody else.
      if (std::count(piece.begin(), piece.end(), -1) == static_cast<int64_t>(piece.size()))
        continue;
      ASSERT_EQ(static_cast<int>(ranks.size()), cut.holders);
      ASSERT_EQ(ranks.front() % cut.holders, 0);
      ASSERT_EQ(ranks.back() - ranks.front(), cut.holders - 1);
    }
  });
}

TEST(ParamShard, PadsAVocabularyByLessThanARowPerRank) {
  sweep([](const ParamSpec& param, int tp, Random&) {
    const ParamShard cut = param_shard_of(param, tp);
    for (int d = 0; d < static_cast<int>(param.shape.size()); ++d) {
      if (d != cut.dim) {
        ASSERT_EQ(cut.shape[d], param.shape[d]);
        continue;
      }
      const int64_t pieces = tp / cut.holders, padding = cut.shape[d] * pieces - param.shape[d];
      ASSERT_GE(padding, 0);
      ASSERT_LT(padding, param.tp_sharding.pads ? pieces : 1);
    }
  });
}

ParamSpec cut_by(const TpSharding& cut) {
  ParamSpec param;
  param.shape = {24, 24};
  param.tp_sharding = cut;
  return param;
}

TEST(ParamShard, CutsBetweenBlocksAndNowhereElse) {
  const ParamSpec heads = cut_by({.dim = 0, .blocks = 6}),
                  kv = cut_by({.dim = 0, .blocks = 4, .replicates_kv = true}),
                  vocabulary = cut_by({.dim = 0, .pads = true}), norm = cut_by({});
  for (int tp = 1; tp <= 12; ++tp) {
    EXPECT_EQ(can_shard(heads, tp), 6 % tp == 0) << tp;
    EXPECT_EQ(can_shard(kv, tp), 4 % tp == 0 || tp % 4 == 0) << tp;
    EXPECT_TRUE(can_shard(vocabulary, tp));
    EXPECT_TRUE(can_shard(norm, tp));
  }
}

TEST(ParamShard, OneRankHoldsAll) {
  sweep([](const ParamSpec& param, int, Random&) {
    const ParamShard cut = param_shard_of(param, 1);
    ASSERT_EQ(cut.shape, param.shape);
    ASSERT_EQ(cut.dim, -1);
    ASSERT_EQ(cut.holders, 1);
  });
}

}  // namespace
}  // namespace zea::test_param_shard
