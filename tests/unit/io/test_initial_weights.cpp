// SPDX-License-Identifier: Apache-2.0
#include "io/model_source.hpp"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "core/mixed_bits.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_initial_weights {
namespace {

const std::string kConfig = R"({"model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
  "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
  "max_position_embeddings": 64, "hidden_act": "silu"})";
const std::string kEmbedding = "model.embed_tokens.weight";
const Shape kShape{512, 32};

std::vector<double> draw(uint64_t seed, const std::string& name, const Shape& shape,
                         const Extent& box) {
  std::vector<double> values(static_cast<size_t>(box.elements()));
  make_initial_weights(kConfig, seed)->read(name, shape, box, DType::Float64, values.data());
  return values;
}

TEST(InitialWeights, AnyBoxIsPartOfTheWhole) {
  const std::vector<double> all = draw(7, kEmbedding, kShape, whole(kShape));
  for (const int64_t first : {2, 3})  // where a pair begins, and within one
    for (const int64_t columns : {1, 10, 11}) {
      const Extent box{{100, first}, {17, columns}};
      const std::vector<double> part = draw(7, kEmbedding, kShape, box);
      for (int64_t r = 0; r < 17; ++r)
        for (int64_t c = 0; c < columns; ++c)
          EXPECT_EQ(part[r * columns + c], all[(100 + r) * 32 + first + c]);
    }
}

/// In (0, 1].
double uniform(uint64_t key, uint64_t counter) {
  return static_cast<double>((mixed(key ^ mixed(counter)) >> 11) + 1) * 0x1p-53;
}

TEST(InitialWeights, ArePairsOfABoxMullerTransformToTheLastBit) {
  const std::vector<double> all = draw(7, kEmbedding, kShape, whole(kShape));
  const uint64_t key = mixed_name(7, kEmbedding);
  for (uint64_t i = 0; i < all.size(); ++i) {
    const uint64_t even = i - i % 2;
    const double radius = std::sqrt(-2 * std::log(uniform(key, even)));
    const double angle = 2 * std::numbers::pi * uniform(key, even + 1);
    ASSERT_EQ(all[i], 0.02 * (radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle)))) << i;
  }
}

TEST(InitialWeights, AreNormalWithTheSpecifiedDeviation) {
  const std::vector<double> all = draw(7, kEmbedding, kShape, whole(kShape));
  double mean = 0, square = 0, neighbours = 0;
  int64_t beyond = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    mean += all[i] / all.size();
    square += all[i] * all[i] / all.size();
    if (i > 0) neighbours += all[i] * all[i - 1] / all.size();
    beyond += std::abs(all[i]) > 0.02 * 1.959964;
  }
  const double sigma =
      1 / std::sqrt(static_cast<double>(all.size()));  // of each estimate, relative

  EXPECT_NEAR(mean / 0.02, 0, 4 * sigma);
  EXPECT_NEAR(square / 0.0004, 1, 4 * std::sqrt(2.0) * sigma);
  EXPECT_NEAR(neighbours / 0.0004, 0, 4 * sigma);
  EXPECT_NEAR(static_cast<double>(beyond) / all.size(), 0.05, 4 * std::sqrt(0.05 * 0.95) * sigma);
}

TEST(InitialWeights, PositionsOfAnAudioEncoderAreSinesAndCosines) {
  const auto weights =
      make_initial_weights(testing::tiny_llava_config({.vision_hidden = 8, .audio = true}), 7);
  const Shape shape{6, 8};
  std::vector<double> table(48);
  weights->read("audio_tower.embed_positions.weight", shape, whole(shape), DType::Float64,
                table.data());
  for (int position = 0; position < 6; ++position)
    for (int i = 0; i < 4; ++i) {
      const double angle = position * std::pow(10000.0, -i / 3.0);
      EXPECT_NEAR(table[position * 8 + i], std::sin(angle), 1e-12);
      EXPECT_NEAR(table[position * 8 + 4 + i], std::cos(angle), 1e-12);
    }
}

TEST(InitialWeights, DependOnSeedAndName) {
  const Shape shape{32, 32};
  const std::vector<double> q =
      draw(7, "model.layers.0.self_attn.q_proj.weight", shape, whole(shape));

  EXPECT_NE(q, draw(8, "model.layers.0.self_attn.q_proj.weight", shape, whole(shape)));
  EXPECT_NE(q, draw(7, "model.layers.0.self_attn.o_proj.weight", shape, whole(shape)));
  EXPECT_EQ(q, draw(7, "model.layers.0.self_attn.q_proj.weight", shape, whole(shape)));
  EXPECT_EQ(draw(7, "model.norm.weight", {32}, whole({32})), std::vector<double>(32, 1.0));
}

TEST(InitialWeights, RefuseWhatTheModelDoesNotHave) {
  EXPECT_THROW(draw(7, "nothing", {1}, whole({1})), WeightsError);
  EXPECT_THROW(draw(7, kEmbedding, {32, 512}, whole({32, 512})), WeightsError);
  EXPECT_THROW(make_initial_weights("{}", 7), WeightsError);
}

}  // namespace
}  // namespace zea::test_initial_weights
