// SPDX-License-Identifier: Apache-2.0
// Videos: in data sets, as shapes, as positions, and decoded.
#include <gtest/gtest.h>

#include "data/loader.hpp"
#include "layout/visibility.hpp"
#include "support/dataset_file.hpp"
#include "support/memory_dataset.hpp"
#include "support/tiny_qwen2_vl.hpp"

namespace zea::test_videos {
namespace {

using testing::Arrays;
using testing::DatasetFile;

constexpr int32_t kImage = 7, kVideo = 6;

/// Frames of 2 x 2 patches of a pixel each become a feature; pairs of frames are a moment.
EncoderSpec encoder_of_videos() {
  EncoderSpec encoder{.name = "vision", .placeholder = kImage, .video_placeholder = kVideo};
  encoder.input = PatchInput{.image_size = 8,
                             .patch_size = 1,
                             .frames = 2,
                             .video = VideoInput{.pixels = {4, 64}, .most_frames = 5},
                             .block = 2,
                             .tiling = ImagesWithin{}};
  encoder.projector.merge = 4;
  encoder.drops_first_token = false;
  return encoder;
}

/// The second sample has a video of three frames of one grey pixel, the third an image.
void with_video(Arrays& a) {
  a.version = "3";
  a.audio_token = "-1";
  a.video_token = "6";
  a.tokens = {7, 1, 1, 6, 6, 4, 7, 6, 5};
  a.sample_item_offsets = {0, 1, 4, 5};
  a.item_offsets = {0, 1, 2, 3, 4, 5};
  a.item_shape = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  a.item_modality.assign(5, 0);
  a.item_rate = {0, 2000, 2000, 2000, 0};
  a.item_frames = {0, 3, -1, -1, 0};
}

class VideoFile : public DatasetFile {};

TEST_F(VideoFile, AVideoIsOneItem) {
  Arrays arrays;
  with_video(arrays);
  const EncoderSpec encoder = encoder_of_videos();
  const auto data =
      open_dataset(write(arrays), kHeldBytes, {}, {{Modality::Image, kImage, 1, encoder, kVideo}});
  const std::vector<ItemShape> shapes = data->index()[1].items.shapes(0, encoder);
  ASSERT_EQ(shapes.size(), 1u);
  EXPECT_EQ(shapes[0].frames, 4);
  EXPECT_EQ(shapes[0].tiles, 2);
  EXPECT_EQ(shapes[0].features, 2);
  const Item video = data->read(1).items.at(0);
  EXPECT_EQ(video.frames, 3);
  EXPECT_EQ(video.rate, 2000);
  EXPECT_EQ(frame_of(video, 1).bytes, std::vector<uint8_t>{1});
  EXPECT_EQ(data->read(2).items.at(0).frames, 0);
}

TEST_F(VideoFile, FramesPerSecondMayBeExact) {
  Arrays arrays;
  with_video(arrays);
  for (const bool is_exact : {false, true}) {
    const double per_second = is_exact ? 2.0 / 3 : 0.667;
    for (int i : {1, 2, 3}) arrays.item_rate[i] = 667;
    if (is_exact) arrays.item_frames_per_second = {0, per_second, per_second, per_second, 0};
    const auto data = open_dataset(write(arrays), kHeldBytes);
    EXPECT_EQ(data->read(1).items.at(0).frames_per_second, per_second);
  }
}

TEST_F(VideoFile, FaultsAreNamed) {
  const auto expect = [&](const char* part, void (*damage)(Arrays&)) {
    expect_fault(part, [&](Arrays& a) {
      with_video(a);
      damage(a);
    });
  };
  expect("attribute video_token is \"\"", [](Arrays& a) { a.video_token.clear(); });
  expect("video_token and audio_token are both 6", [](Arrays& a) { a.audio_token = "6"; });
  expect("video_token is 8, outside its vocabulary of 8", [](Arrays& a) { a.video_token = "8"; });
  expect("item_frames has 0 entries for 5 items", [](Arrays& a) { a.item_frames.clear(); });
  expect("item_frames has 5 entries for 5 items; in version 3 it has one for each, before it none",
         [](Arrays& a) { a.version = "2"; });
  expect("item 1 has item_frames 4; allowed are 0", [](Arrays& a) { a.item_frames[1] = 4; });
  expect("item 0 has item_frames -1", [](Arrays& a) { a.item_frames[0] = -1; });
  expect("item 3 has item_frames -1", [](Arrays& a) { a.item_frames[1] = 2; });
  expect("item 2 is a frame of the video that begins with item 1",
         [](Arrays& a) { a.item_frames[2] = 0; });
  expect("item 3 is a frame of the video that begins with item 1",
         [](Arrays& a) { a.item_rate[3] = 1000; });
  expect("item 2 is a frame of the video that begins with item 1", [](Arrays& a) {
    a.item_shape[6] = 0;
    a.item_shape[7] = 0;
    a.item_shape[8] = 0;
  });
  expect("item 1 is a frame of the video that begins with item 1", [](Arrays& a) {
    for (int i : {1, 2, 3}) a.item_rate[i] = -5;
  });
  expect("item_frames_per_second has 1 entries for 5 items",
         [](Arrays& a) { a.item_frames_per_second = {0}; });
  for (void (*damage)(Arrays&) : {+[](Arrays& a) {
                                    a.item_frames_per_second = {0, 2.01, 2, 2, 0};
                                  },
                                  +[](Arrays& a) {
                                    a.item_frames_per_second = {0, NAN, 2, 2, 0};
                                  },
                                  +[](Arrays& a) {
                                    for (int i : {1, 2, 3}) a.item_rate[i] = 0;
                                    a.item_frames_per_second = {0, 1e-300, 0, 0, 0};
                                  },
                                  +[](Arrays& a) {
                                    for (int i : {1, 2, 3}) a.item_rate[i] = 0;
                                    a.item_frames_per_second = {0, -1e-4, 0, 0, 0};
                                  }})
    expect("item 1 has item_frames_per_second", damage);
}

TEST_F(VideoFile, AModelThatTakesNoneRefusesIt) {
  Arrays arrays;
  with_video(arrays);
  const auto fault = [&](const std::vector<ItemKind>& kinds) {
    try {
      open_dataset(write(arrays), kHeldBytes, {}, kinds);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(fault({{Modality::Image, kImage}})
                .find("sample 1 has a video, for which the model has no placeholder"),
            std::string::npos);
  EncoderSpec short_ones = encoder_of_videos();
  std::get<PatchInput>(short_ones.input).video->most_frames = 2;
  EXPECT_NE(fault({{Modality::Image, kImage, 1, short_ones, kVideo}})
                .find("sample 1 has a video of 3 frames, more than data.max_frames = 2"),
            std::string::npos);
}

/// The shapes are those of qwen-vl-utils and of transformers' Qwen2VLVideoProcessor and
/// Qwen3VLVideoProcessor.
TEST(VideoShapes, AreThoseOfTheProcessors) {
  const ModelSpec qwen2 = make_model_spec(testing::tiny_qwen2_5_vl_config());
  const ItemShape shape = qwen2.encoders[0].video_shape({480, 640}, 5, 1);
  const int64_t step = 8, high = 480 / step, wide = 640 / step;
  EXPECT_EQ(shape.frames, 6);
  EXPECT_EQ(shape.tiles, 3);
  EXPECT_EQ(shape.tile_features(), high * wide);
  EXPECT_EQ(shape.windows().size(), static_cast<size_t>(high / 2 * (wide / 2)));
  EXPECT_EQ(shape.time_step, 4 * 2);  // a moment of two seconds, each of which is 4 positions
  EXPECT_EQ(qwen2.encoders[0].video_shape({480, 640}, 5, 4).time_step, 0);
  EXPECT_EQ(qwen2.encoders[0].video_shape({480, 640}, 5, 0).time_step, 4);

  ModelSpec qwen3 = make_model_spec(testing::tiny_qwen3_vl_config());
  VideoInput& video = *std::get<PatchInput>(qwen3.encoders[0].input).video;
  video.pixels = {0, 3 * 64 * 64};
  // Five frames count as four: 4 * 56 * 56 are more, so these shrink by sqrt(5 * 60 * 60 / most).
  EXPECT_EQ(qwen3.encoders[0].video_shape({60, 60}, 5, 0).tile_features(), 6 * 6);
  EXPECT_EQ(qwen3.encoders[0].video_shape({2, 60}, 2, 0).tile_features(), 1 * 30);  // made 8 x 240
}

TEST(VideoShapes, FeaturesOfATemporalPatchFollowThoseOfTheOneBefore) {
  ModelSpec model = make_model_spec(testing::tiny_qwen2_5_vl_config());
  std::get<PatchInput>(model.encoders[0].input).video->pixels = {64, 24 * 24};
  const ItemShape shape = model.encoders[0].video_shape({24, 24}, 4, 0);
  std::vector<int64_t> features;
  for (int64_t token = 0; token < shape.tokens; token += shape.merge)
    features.push_back(shape.feature_of(token));
  const std::vector<int64_t> one{0, 1, 3, 4, 2, 5, 6, 7, 8};  // windows of 2 x 2 features
  std::vector<int64_t> expected = one;
  for (int64_t feature : one) expected.push_back(9 + feature);
  EXPECT_EQ(features, expected);
}

/// The positions are those of transformers' get_rope_index.
TEST(VideoPositions, ATemporalPatchIsAStepInTime) {
  ItemShape video{.tokens = 16, .features = 4, .merge = 4, .width = 4, .tiles = 2};
  video.frames = 4;
  video.time_step = 6;
  std::vector<MaskWord> words{make_mask_word(0, kModalityText, 0)};
  for (int i = 0; i < 4; ++i) words.push_back(make_mask_word(0, kModalityImage, 1));
  words.push_back(make_mask_word(0, kModalityText, 0));
  using Positions = std::vector<TokenPosition>;
  EXPECT_EQ(grid_positions(words, {{video}}),
            (Positions{{0, 0, 0}, {1, 1, 1}, {1, 1, 2}, {7, 1, 1}, {7, 1, 2}, {3, 3, 3}}));

  video.has_text_between = true;
  words.insert(words.begin() + 3, make_mask_word(0, kModalityText, 0));
  EXPECT_EQ(
      grid_positions(words, {{video}}),
      (Positions{{0, 0, 0}, {1, 1, 1}, {1, 1, 2}, {3, 3, 3}, {4, 4, 4}, {4, 4, 5}, {6, 6, 6}}));
}

/// The positions of a video with its sound, and of one that lasts longer than its sound, are those
/// of transformers' get_rope_index of Qwen2.5-Omni with use_audio_in_video.
TEST(VideoPositions, SoundTakesTurnsWithItsVideo) {
  ItemShape video{.tokens = 16, .features = 4, .merge = 4, .width = 4, .tiles = 2};
  video.frames = 4;
  video.time_step = 2;
  video.time = VideoTime::Rounded;
  video.seconds = 1.3F;
  const ItemShape sound{.tokens = 6, .features = 3, .merge = 2};
  const MaskWord text = make_mask_word(0, kModalityText, 0),
                 seen = make_mask_word(0, kModalityImage, 1),
                 heard = make_mask_word(0, kModalityAudio, 1, 1);
  using Positions = std::vector<TokenPosition>;
  EXPECT_EQ(
      grid_positions({text, text, seen, seen, heard, heard, seen, seen, heard, text, text, text},
                     {{video}, {sound}}),
      (Positions{{0, 0, 0},
                 {0, 0, 0},
                 {1, 1, 1},
                 {1, 1, 2},
                 {1, 1, 1},
                 {2, 2, 2},
                 {3, 1, 1},
                 {3, 1, 2},
                 {3, 3, 3},
                 {4, 4, 4},
                 {4, 4, 4},
                 {5, 5, 5}}));
  video.seconds = 4;  // the last chunk tells how positions go on
  EXPECT_EQ(grid_positions({text, text, seen, seen, seen, seen, heard, heard, heard, text, text},
                           {{video}, {sound}}),
            (Positions{{0, 0, 0},
                       {0, 0, 0},
                       {1, 1, 1},
                       {1, 1, 2},
                       {9, 1, 1},
                       {9, 1, 2},
                       {1, 1, 1},
                       {2, 2, 2},
                       {3, 3, 3},
                       {4, 4, 4},
                       {4, 4, 4}}));
  // A pair that follows another without text begins after it.
  const MaskWord seen_next = make_mask_word(0, kModalityImage, 2),
                 heard_next = make_mask_word(0, kModalityAudio, 2, 1);
  const Positions two =
      grid_positions({text, text, seen, seen, seen, seen, heard, heard, heard, seen_next, seen_next,
                      seen_next, seen_next, heard_next, heard_next, heard_next},
                     {{video, video}, {sound, sound}});
  EXPECT_EQ(two.at(9), (TokenPosition{4, 4, 4}));
  EXPECT_EQ(two.at(13), (TokenPosition{4, 4, 4}));
  // Text between them makes two items of them.
  EXPECT_EQ(
      grid_positions({text, seen, seen, seen, seen, text, heard, heard, heard}, {{video}, {sound}}),
      (Positions{{0, 0, 0},
                 {1, 1, 1},
                 {1, 1, 2},
                 {9, 1, 1},
                 {9, 1, 2},
                 {10, 10, 10},
                 {11, 11, 11},
                 {12, 12, 12},
                 {13, 13, 13}}));
}

/// In Qwen3-Omni temporal positions are fractional, features are interleaved by time, and each
/// token around them has its own position.
TEST(VideoPositions, InterleavesAudioWithItsVideoByTime) {
  ItemShape video{.tokens = 16, .features = 4, .merge = 4, .width = 4, .tiles = 2};
  video.frames = 4;
  video.time_step = 2;
  video.time = VideoTime::Exact;
  video.seconds = 0.75F;
  const ItemShape sound{.tokens = 4, .features = 4};
  const MaskWord text = make_mask_word(0, kModalityText, 0),
                 seen = make_mask_word(0, kModalityImage, 1),
                 heard = make_mask_word(0, kModalityAudio, 1, 1);
  using Positions = std::vector<TokenPosition>;
  EXPECT_EQ(
      grid_positions({text, text, seen, seen, heard, heard, seen, seen, heard, heard, text, text},
                     {{video}, {sound}}),
      (Positions{{0, 0, 0},
                 {1, 1, 1},
                 {2, 2, 2},
                 {2, 2, 3},
                 {2, 2, 2},
                 {3, 3, 3},
                 {3.5F, 2, 2},
                 {3.5F, 2, 3},
                 {4, 4, 4},
                 {5, 5, 5},
                 {6, 6, 6},
                 {7, 7, 7}}));
  video.seconds = 4.25F;  // longer than its audio track
  const Positions longer = grid_positions(
      {text, text, seen, seen, heard, heard, heard, heard, seen, seen, text}, {{video}, {sound}});
  EXPECT_EQ(longer.at(9), (TokenPosition{10.5F, 2, 3}));
  EXPECT_EQ(longer.at(10), (TokenPosition{11.5F, 11.5F, 11.5F}));
  const Positions alone = grid_positions({text, seen, seen, seen, seen, text}, {{video}});
  EXPECT_EQ(alone.at(5), (TokenPosition{10.5F, 10.5F, 10.5F}));
}

/// As in transformers, where a text's tokens are counted from its first one. The token at the end
/// of a video is not a part of that text.
TEST(VideoPositions, FractionsAreRoundedOnceInAText) {
  ItemShape video{.tokens = 16, .features = 4, .merge = 4, .width = 4, .tiles = 2};
  video.frames = 4;
  video.time_step = 2;
  video.time = VideoTime::Exact;
  video.seconds = 2.0F / 3;
  constexpr size_t kBefore = 1 + 4 + 1;
  std::vector<MaskWord> words(kBefore + 60, make_mask_word(0, kModalityText, 0));
  std::fill_n(words.begin() + 1, 4, make_mask_word(0, kModalityImage, 1));
  const std::vector<TokenPosition> positions = grid_positions(words, {{video}});
  const float first = positions.at(kBefore)[0];
  EXPECT_EQ(first, positions.at(kBefore - 1)[0] + 1);
  float step_by_step = first;
  for (size_t i = 0; kBefore + i < words.size(); ++i) {
    EXPECT_EQ(positions[kBefore + i][0], first + static_cast<float>(i)) << i;
    if (i > 0) ++step_by_step;
  }
  EXPECT_NE(positions.back()[0], step_by_step);
}

Sample sample_of_video(int64_t frames) {
  Sample sample;
  sample.tokens.assign(static_cast<size_t>((frames + 1) / 2), kVideo);
  sample.tokens.push_back(1);
  sample.loss_mask.assign(sample.tokens.size(), 1);
  Item video;
  video.raw = true;
  video.height = video.width = video.channels = 1;
  video.frames = frames;
  video.rate = 500;
  for (int64_t i = 0; i < frames; ++i) {
    video.bytes.push_back(static_cast<uint8_t>(10 * i));
    video.frame_ends.push_back(i + 1);
  }
  sample.items = {video};
  return sample;
}

LoaderOptions loading() {
  return {{{.image = {.size = 8, .mean = {0, 0, 0}, .std = {1, 1, 1}, .patch_size = 1}}}};
}

TEST(VideosAreDecoded, TheLastFrameFillsUpATemporalPatch) {
  const MemoryDataset data({sample_of_video(3)}, item_kinds([] {
                             ModelSpec model;
                             model.encoders = {encoder_of_videos()};
                             return model;
                           }()));
  const LoadedMicrobatch loaded = load_microbatch(data, loading(), {0});
  ASSERT_EQ(loaded.values.at(0).size(), 4u * 3 * 2 * 2);
  for (size_t i = 0; i < loaded.values[0].size(); ++i)
    EXPECT_FLOAT_EQ(loaded.values[0][i],
                    static_cast<float>(10 * std::min<size_t>(i / 12, 2)) / 255);
}

TEST(VideosAreDecoded, OneThatLastsTooLongIsBad) {
  const MemoryDataset data({sample_of_video(3)},
                           {{Modality::Image, kImage, 1, encoder_of_videos(), kVideo}});
  LoaderOptions options = loading();
  options.max_clip_seconds = 5;
  try {
    load_microbatch(data, options, {0});
    FAIL();
  } catch (const DataError& fault) {
    EXPECT_NE(std::string(fault.what())
                  .find("sample 0: video 0: lasts 6 s, more than data.max_clip_seconds = 5"),
              std::string::npos)
        << fault.what();
  }
  options.mask_bad_items = true;
  EXPECT_EQ(load_microbatch(data, options, {0}).bad.size(), 1u);
}

}  // namespace
}  // namespace zea::test_videos
