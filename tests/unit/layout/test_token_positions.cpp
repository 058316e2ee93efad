// SPDX-License-Identifier: Apache-2.0
// Positions of tokens in three numbers: those that transformers' Qwen2VLModel.get_rope_index gives.
#include "layout/visibility.hpp"

#include <gtest/gtest.h>

namespace zea::test_token_positions {
namespace {

using Positions = std::vector<TokenPosition>;

/// An image of so many features, each of 2 x 2 patches.
ItemShape image_of(int64_t high, int64_t wide) {
  return {.tokens = 4 * high * wide, .features = high * wide, .merge = 4, .width = 2 * wide};
}

void append(std::vector<MaskWord>& words, int64_t tokens, MaskWord word) {
  words.insert(words.end(), static_cast<size_t>(tokens), word);
}

TEST(TokenPositions, ImagesStandInGridsAndWhatFollowsBehindTheirLongerSide) {
  std::vector<MaskWord> words;
  append(words, 3, make_mask_word(0, kModalityText, 0));
  append(words, 6, make_mask_word(0, kModalityImage, 1));
  append(words, 2, make_mask_word(0, kModalityText, 0));
  append(words, 4, make_mask_word(0, kModalityImage, 2));
  append(words, 1, make_mask_word(0, kModalityText, 0));
  EXPECT_EQ(grid_positions(words, {{image_of(2, 3), image_of(4, 1)}}), (Positions{{0, 0, 0},
                                                                                  {1, 1, 1},
                                                                                  {2, 2, 2},
                                                                                  {3, 3, 3},
                                                                                  {3, 3, 4},
                                                                                  {3, 3, 5},
                                                                                  {3, 4, 3},
                                                                                  {3, 4, 4},
                                                                                  {3, 4, 5},
                                                                                  {6, 6, 6},
                                                                                  {7, 7, 7},
                                                                                  {8, 8, 8},
                                                                                  {8, 9, 8},
                                                                                  {8, 10, 8},
                                                                                  {8, 11, 8},
                                                                                  {12, 12, 12}}));
}

TEST(TokenPositions, SamplesBeginAtZeroAndImagesMayFollowEachOther) {
  std::vector<MaskWord> words;
  append(words, 2, make_mask_word(0, kModalityText, 0));
  append(words, 2, make_mask_word(1, kModalityImage, 1));
  append(words, 1, make_mask_word(1, kModalityImage, 2));
  append(words, 2, make_mask_word(1, kModalityText, 0));
  EXPECT_EQ(
      grid_positions(words, {{image_of(1, 2), image_of(1, 1)}}),
      (Positions{{0, 0, 0}, {1, 1, 1}, {0, 0, 0}, {0, 0, 1}, {2, 2, 2}, {3, 3, 3}, {4, 4, 4}}));
}

TEST(TokenPositions, AudioIsCountedAsTextIs) {
  std::vector<MaskWord> words;
  append(words, 1, make_mask_word(0, kModalityText, 0));
  append(words, 3, make_mask_word(0, kModalityAudio, 1, 1));
  append(words, 1, make_mask_word(0, kModalityImage, 1, 0));
  append(words, 1, make_mask_word(0, kModalityText, 0));
  EXPECT_EQ(grid_positions(words, {{image_of(1, 1)}, {{.tokens = 3, .features = 3}}}),
            (Positions{{0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {3, 3, 3}, {4, 4, 4}, {5, 5, 5}}));
}

}  // namespace
}  // namespace zea::test_token_positions
