// SPDX-License-Identifier: Apache-2.0
// LLaVA-NeXT's spec: which resolution an image is fitted into, the order of its features, and which
// configs are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "layout/item_row.hpp"
#include "schedule/plan.hpp"
#include "support/config_refusal.hpp"
#include "support/tiny_llava.hpp"

namespace zea::test_llava_next {
namespace {

using Json = nlohmann::json;

/// Tiles of 2 x 2 patches.
Json tiny_config() {
  Json config = Json::parse(testing::tiny_llava_config());
  config["model_type"] = "llava_next";
  config["image_grid_pinpoints"] = {{8, 16}, {16, 8}, {16, 16}};
  return config;
}

EncoderSpec tiny_encoder() {
  return make_model_spec(tiny_config().dump()).encoders.at(0);
}

std::string refusal(const char* key, const Json& value) {
  Json config = tiny_config();
  config[key] = value;
  return testing::refusal_of(config);
}

TEST(LlavaNext, FitsImagesAsItsProcessor) {
  PatchInput input;
  input.tiling = FittedTiles{{{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}}};
  // Results of transformers' select_best_resolution.
  const int64_t sizes[][4] = {{1, 1, 336, 672},       {336, 336, 336, 672},
                              {480, 640, 672, 672},   {640, 480, 672, 672},
                              {300, 1200, 336, 1008}, {1200, 300, 1008, 336},
                              {2000, 1000, 672, 336}, {100, 5000, 336, 1008}};
  for (const auto& [height, width, high, wide] : sizes) {
    const ImageSize found = input.resolution({height, width});
    EXPECT_EQ(found.height, high) << height << " x " << width;
    EXPECT_EQ(found.width, wide) << height << " x " << width;
  }
}

TEST(LlavaNext, FeaturesGoByRowsOfTheGrid) {
  const ItemShape all = tiny_encoder().item_shape(ImageSize{8, 16});
  ASSERT_EQ(all.tiles, 3);
  ASSERT_EQ(all.row_ends(), 2);
  ASSERT_EQ(all.tokens, 3 * 5 + 2);
  ASSERT_EQ(all.features, 4 + 2 * 5);
  const ItemRow row({all}, {0}, "vision", {});
  std::vector<int64_t> features;
  for (int64_t token = 0; token < all.tokens; ++token) features.push_back(row.feature(token));

  EXPECT_EQ(features,
            (std::vector<int64_t>{-1, 0, 1, 2, 3, -1, 4, 5, 9, 10, -1, 6, 7, 11, 12, 8, 13}));
  EXPECT_EQ(row.segments(), (std::vector<Segment>{{0, 5}, {5, 5}, {10, 5}, {15, 1}, {16, 1}}));
}

TEST(LlavaNext, PaddingBecomesNoFeature) {
  const EncoderSpec encoder = tiny_encoder();
  for (const ImageSize& image :
       {ImageSize{4, 30}, {30, 4}, {16, 16}, {9, 14}, {1, 100}, {100, 1}, {13, 16}}) {
    const ItemShape shape = encoder.item_shape(image);
    std::vector<int64_t> features;
    for (int64_t token = 0; token < shape.tokens; ++token)
      if (shape.feature_of(token) >= 0) features.push_back(shape.feature_of(token));
    std::ranges::sort(features);
    ASSERT_EQ(static_cast<int64_t>(features.size()), shape.features);
    for (size_t i = 0; i < features.size(); ++i) ASSERT_EQ(features[i], static_cast<int64_t>(i));
  }
  EXPECT_EQ(encoder.item_shape(ImageSize{4, 16}).row_ends(), 2);
  EXPECT_EQ(encoder.item_shape(ImageSize{1, 100}).row_ends(), 0);  // nothing of it is left
  EXPECT_EQ(encoder.shape_within(23).features, 4 + 4 * 3);
  EXPECT_EQ(encoder.item_shape().features, 4 + 4 * 5);
}

TEST(LlavaNext, RefusesWhatIsNotBuilt) {
  EXPECT_NE(refusal("image_grid_pinpoints", {{8, 12}}).find("whole tiles"), std::string::npos);
  EXPECT_NE(refusal("image_grid_pinpoints", {{8, 8000}}).find("64 of them"), std::string::npos);
  EXPECT_NE(refusal("image_grid_pinpoints", {8, 8}).find("a list of pairs"), std::string::npos);
  EXPECT_NE(refusal("vision_feature_select_strategy", "full").find("the patches of each tile"),
            std::string::npos);
  Json siglip = tiny_config()["vision_config"];
  siglip["model_type"] = "siglip_vision_model";
  EXPECT_NE(refusal("vision_config", siglip).find("full: this encoder's features"),
            std::string::npos);
  Json dino = tiny_config()["vision_config"];
  dino["model_type"] = "dinov2_with_registers";
  for (const char* key : {"intermediate_size", "projection_dim", "vocab_size"}) dino.erase(key);
  EXPECT_NE(refusal("vision_config", dino).find("without registers"), std::string::npos);
  EXPECT_NE(refusal("use_image_newline_parameter", false).find("not built"), std::string::npos);
}

Json onevision_config() {
  Json config = Json::parse(testing::tiny_llava_config({.siglip = true}));
  config["model_type"] = "llava_onevision";
  config["vision_feature_select_strategy"] = "full";
  config["image_grid_pinpoints"] = {{8, 8}, {8, 16}, {16, 16}, {16, 24}};
  config["vision_aspect_ratio"] = "anyres_max_2";
  return config;
}

EncoderSpec onevision_encoder() {
  return make_model_spec(onevision_config().dump()).encoders.at(0);
}

TEST(LlavaOneVision, ResamplesFeaturesOfTooManyTiles) {
  const EncoderSpec encoder = onevision_encoder();
  const ItemShape two = encoder.item_shape(ImageSize{8, 16});
  EXPECT_EQ(two.fitted->sources, 0);
  EXPECT_EQ(two.features, 4 + 2 * 5);
  // 4 x 6 features, and 2 tiles have 8: sqrt(3) less each way.
  const ItemShape six = encoder.item_shape(ImageSize{16, 24});
  EXPECT_EQ(six.fitted->shrunk_rows, 2);
  EXPECT_EQ(six.fitted->shrunk_columns, 3);
  EXPECT_EQ(six.row_ends(), 2);
  EXPECT_EQ(six.tokens, 7 * 4 + 2);
  EXPECT_EQ(six.features, 4 + 2 * 4);
  EXPECT_EQ(six.fitted->sources, 4 + 4 * 6 + 2);
  std::vector<int64_t> features, sources;
  for (int64_t token = 0; token < six.tokens; ++token) {
    if (six.feature_of(token) >= 0) features.push_back(six.feature_of(token));
    sources.push_back(six.source_of(token));
  }
  std::ranges::sort(features);
  std::ranges::sort(sources);
  for (int64_t i = 0; i < six.features; ++i) ASSERT_EQ(features.at(i), i);
  ASSERT_EQ(std::ssize(features), six.features);
  for (int64_t i = 0; i < six.fitted->sources; ++i) ASSERT_EQ(sources.at(i), i);
}

TEST(LlavaOneVision, SharesOfAFeatureLieAroundItsCentre) {
  const ItemShape six = onevision_encoder().item_shape(ImageSize{16, 24});
  // The first of 2 x 3 among 4 x 6: half a row and half a column from its corner.
  const auto corners = six.feature_shares(4);
  const int64_t rows[] = {4, 5, 10, 11};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(corners[i].row, rows[i]);
    EXPECT_EQ(corners[i].share, 0.25);
  }
  EXPECT_EQ(six.feature_shares(2)[0].row, 2);
  EXPECT_EQ(six.feature_shares(2)[0].share, 1);
  EXPECT_EQ(six.feature_shares(7)[0].row, 4 + 24);  // the end of the first row
}

TEST(LlavaOneVision, OneOfSeveralImagesIsPadded) {
  const ItemShape padded = onevision_encoder().padded_shape();
  EXPECT_EQ(padded.tokens, 5);
  EXPECT_EQ(padded.features, 5);
  std::vector<int64_t> features;
  for (int64_t token = 0; token < 5; ++token) features.push_back(padded.feature_of(token));
  EXPECT_EQ(features, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

/// A row of images, some of which belong to other ranks.
TEST(LlavaOneVision, EachRankMakesAPartOfTheFeaturesThatItHasRowsOf) {
  const EncoderSpec encoder = onevision_encoder();
  const ItemShape six = encoder.item_shape(ImageSize{16, 24}), two = encoder.padded_shape();
  const ItemRow row({six, two, six}, {1, 2}, "vision", {});
  const int64_t before_rows = six.fitted->sources, before = six.features;

  // The padded one, and of the other all of its small whole and the first tile's upper row.
  const TokenRuns first{{0, two.tokens + 4 + 2}}, rest{{two.tokens + 6, two.tokens + six.tokens}};
  EXPECT_EQ(row.projected(first), (TokenRuns{{before_rows, before_rows + two.features + 4 + 2}}));
  const int64_t own = before + two.features;  // the first feature of the second
  EXPECT_EQ(row.features(first), (TokenRuns{{before, own + 5}}));
  EXPECT_EQ(row.features(rest), (TokenRuns{{own + 4, own + six.features}}));
  EXPECT_EQ(row.feature_shares(own + 4)[1].row, before_rows + two.features + 5);
  EXPECT_EQ(row.feature_shares(before)[0].row, before_rows);
}

/// A frame of 2 x 2 patches becomes one feature, and one end of a row follows all frames.
TEST(LlavaOneVision, InterpolatesEachFrameOfAVideo) {
  const ItemShape video = onevision_encoder().video_shape({30, 50}, 3, 1);
  EXPECT_EQ(video.tokens, 3 * 4 + 1);
  EXPECT_EQ(video.features, 3 + 1);
  EXPECT_EQ(video.projected(), 3 * 4 + 1);
  for (int64_t frame = 0; frame < 3; ++frame) {
    const auto shares = video.feature_shares(frame);
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(shares.at(static_cast<size_t>(i)).row, 4 * frame + i);
      EXPECT_EQ(shares.at(static_cast<size_t>(i)).share, 0.25);
    }
  }
  EXPECT_EQ(video.feature_shares(3)[0].row, 12);
  std::vector<int64_t> features, sources;
  for (int64_t token = 0; token < video.tokens; ++token) {
    sources.push_back(video.source_of(token));
    if (video.feature_of(token) >= 0) features.push_back(video.feature_of(token));
  }
  EXPECT_EQ(features, (std::vector<int64_t>{0, 1, 2, 3}));
  for (int64_t i = 0; i < video.tokens; ++i) EXPECT_EQ(sources.at(static_cast<size_t>(i)), i);
  // In a row of 20 features no image has as many tokens as a video of 19 frames.
  EXPECT_EQ(onevision_encoder().shape_within(20).tokens, 19 * 4 + 1);
}

TEST(LlavaOneVision, RefusesWhatIsNotBuilt) {
  Json config = onevision_config();
  for (const char* ratio : {"pad", "anyres_max_", "anyres_max_0", "anyres_max_9x"}) {
    config["vision_aspect_ratio"] = ratio;
    EXPECT_THROW(make_model_spec(config.dump()), WeightsError) << ratio;
  }
  config = onevision_config();
  config["vision_feature_select_strategy"] = "default";
  EXPECT_THROW(make_model_spec(config.dump()), WeightsError);
}

}  // namespace
}  // namespace zea::test_llava_next
