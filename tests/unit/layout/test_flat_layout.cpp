// SPDX-License-Identifier: Apache-2.0
#include "layout/flat_layout.hpp"

#include <gtest/gtest.h>

#include <map>

#include "support/coverage.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_flat_layout {
namespace {

using testing::tiny_llava_config;

TEST(FlatLayout, HoldsEveryParameterOnceAligned) {
  for (bool tied : {false, true})
    for (bool train_vision : {false, true}) {
      const ModelSpec model = make_model_spec(
          tiny_llava_config({.tied = tied}), {.encoders = {{"vision", {.encoder = train_vision}}}});
      std::map<int, int> seen;
      for (const FlatBuffer& buffer : make_flat_layout(model)) {
        int64_t end = 0;
        for (size_t i = 0; i < buffer.params.size(); ++i) {
          const FlatParam& member = buffer.params[i];
          ++seen[member.param];
          EXPECT_EQ(model.params[member.param].trainable, buffer.trainable);
          EXPECT_GE(member.offset, end);
          const bool fused = i > 0 && model.params[buffer.params[i - 1].param].fused_with_next;
          if (fused)
            EXPECT_EQ(member.offset, end) << "fused parameters lie adjacent";
          else
            EXPECT_EQ(member.offset % kFlatAlignment, 0);
          end = member.offset + member.elements;
        }
        EXPECT_EQ(buffer.elements, end);
      }
      EXPECT_EQ(seen.size(), model.params.size());
      for (const auto& [param, count] : seen) EXPECT_EQ(count, 1) << model.params[param].name;
    }
}

TEST(FlatLayout, ATiedParameterHasABufferOfItsOwn) {
  const ModelSpec model = make_model_spec(tiny_llava_config({.tied = true}));
  int shared = 0;
  for (const FlatBuffer& buffer : make_flat_layout(model))
    if (buffer.units.size() == 2) {
      ++shared;
      ASSERT_EQ(buffer.params.size(), 1);
      EXPECT_EQ(model.params[buffer.params[0].param].name,
                "language_model.model.embed_tokens.weight");
    }
  EXPECT_EQ(shared, 1);
}

TEST(FlatLayout, ShardsCoverEveryParameterExactlyOnce) {
  const ModelSpec model = make_model_spec(tiny_llava_config());
  for (const FlatBuffer& buffer : make_flat_layout(model))
    for (int shards : {1, 2, 3, 5, 8}) {
      std::map<int, std::vector<Extent>> pieces;
      for (int shard = 0; shard < shards; ++shard)
        for (const FlatPart& part : parts_in_range(buffer, shard_range(buffer, shard, shards)))
          for (Extent& box : boxes_of_range(model.params[part.param].shape, part.param_begin,
                                            part.param_begin + part.elements))
            pieces[part.param].push_back(std::move(box));
      EXPECT_EQ(buffer.padded(shards) % (shards * kFlatAlignment), 0);
      for (const FlatParam& member : buffer.params)
        EXPECT_TRUE(
            testing::covers_exactly_once(model.params[member.param].shape, pieces[member.param]));
    }
}

ParamShards cuts_over(const ModelSpec& model, int tp) {
  ParamShards cuts;
  for (const ParamSpec& param : model.params) cuts.push_back(param_shard_of(param, tp));
  return cuts;
}

TEST(FlatLayout, HoldsThePiecesOfATpRankAligned) {
  for (int tp : {1, 2, 4, 8}) {
    const ModelSpec model =
        make_model_spec(tiny_llava_config({.tied = true, .heads = 8, .vision_heads = 8}));
    const ParamShards cuts = cuts_over(model, tp);
    std::map<int, int> seen;
    for (const FlatBuffer& buffer : make_flat_layout(model, {}, cuts)) {
      int64_t end = 0;
      for (size_t i = 0; i < buffer.params.size(); ++i) {
        const FlatParam& member = buffer.params[i];
        ++seen[member.param];
        EXPECT_EQ(member.elements, num_elements(cuts[member.param].shape));
        const bool fused = i > 0 && model.params[buffer.params[i - 1].param].fused_with_next;
        if (fused)
          EXPECT_EQ(member.offset, end) << "fused pieces lie adjacent";
        else
          EXPECT_EQ(member.offset, (end + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment);
        end = member.offset + member.elements;
      }
      EXPECT_EQ(buffer.elements, end);
    }
    EXPECT_EQ(seen.size(), model.params.size());
    for (const auto& [param, count] : seen) EXPECT_EQ(count, 1) << model.params[param].name;
  }
}

TEST(FlatLayout, BucketsCountThePiecesThatARankHolds) {
  const ModelSpec model = make_model_spec(tiny_llava_config({.layers = 8}));
  const auto buckets = [&](int tp) {
    const WrapPolicy bucket{.units = 0, .bucket_elements = 8000};
    return make_flat_layout(model, {{"llm", bucket}}, cuts_over(model, tp)).size();
  };
  EXPECT_GT(buckets(1), buckets(2));
}

/// The shards of all tp ranks together hold every parameter; of replicated parts, the first
/// holder's count.
TEST(FlatLayout, ShardsOfAllTpRanksCoverEveryParameterExactlyOnce) {
  const ModelSpec model = make_model_spec(tiny_llava_config({.vision_heads = 4, .vocabulary = 41}));
  for (int tp : {1, 2, 4})
    for (int shards : {1, 3, 4}) {
      const ParamShards cuts = cuts_over(model, tp);
      std::map<int, std::vector<Extent>> pieces;
      for (const FlatBuffer& buffer : make_flat_layout(model, {}, cuts))
        for (int shard = 0; shard < shards; ++shard)
          for (const FlatPart& part : parts_in_range(buffer, shard_range(buffer, shard, shards)))
            for (int tp_rank = 0; tp_rank < tp; ++tp_rank) {
              if (!cuts[part.param].is_first_holder(tp_rank)) continue;
              for (PieceBox& box :
                   boxes_of_piece(model.params[part.param], cuts[part.param], tp_rank,
                                  part.param_begin, part.param_begin + part.elements))
                pieces[part.param].push_back(std::move(box.extent));
            }
      for (size_t p = 0; p < model.params.size(); ++p)
        EXPECT_TRUE(
            testing::covers_exactly_once(model.params[p].shape, pieces[static_cast<int>(p)]))
            << model.params[p].name << " tp " << tp << " shards " << shards;
    }
}

std::vector<std::string> names_with(const WrapPolicy& llm) {
  const ModelSpec model = make_model_spec(tiny_llava_config());
  std::vector<std::string> names;
  for (const FlatBuffer& buffer : make_flat_layout(model, {{"llm", llm}}))
    if (buffer.module == "llm") names.push_back(buffer.name);
  return names;
}

TEST(FlatLayout, WrapsNeighbouringUnitsOfAModule) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_with({.units = 1}),
            (Names{"llm.embed", "llm.layers.0", "llm.layers.1", "llm.head"}));
  EXPECT_EQ(names_with({.units = 3}), (Names{"llm.embed..llm.layers.1", "llm.head"}));
  EXPECT_EQ(names_with({.units = 0}), (Names{"llm.embed..llm.head"}));
  EXPECT_EQ(names_with({.units = 0, .bucket_elements = 1}).size(), 4);
  EXPECT_EQ(names_with({.units = 0, .bucket_elements = 1 << 30}).size(), 1);
}

TEST(FlatLayout, GivesEveryFusedRunItsOwnBufferWhereParametersAreNotFlattened) {
  const ModelSpec model = make_model_spec(tiny_llava_config());
  const auto buffers = make_flat_layout(model, {{"llm", {.units = 2, .each_parameter = true}}});
  for (const FlatBuffer& buffer : buffers) {
    if (buffer.module != "llm") continue;
    for (size_t i = 0; i + 1 < buffer.params.size(); ++i)
      EXPECT_TRUE(model.params[buffer.params[i].param].fused_with_next) << buffer.name;
    EXPECT_EQ(buffer.name, model.params[buffer.params[0].param].name);
    EXPECT_EQ(buffer.units.size(), 1);
  }
}

}  // namespace
}  // namespace zea::test_flat_layout
