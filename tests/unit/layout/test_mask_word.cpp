// SPDX-License-Identifier: Apache-2.0
#include "layout/visibility.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace zea::test_mask_word {
namespace {

TEST(MaskWord, KeepsItsParts) {
  const MaskWord word = make_mask_word(70000, kModalityImage, 12345, 7);
  EXPECT_EQ(word_encoder(word), 7);
  EXPECT_EQ(word_sample(word), 70000);
  EXPECT_EQ(word_modality(word), kModalityImage);
  EXPECT_EQ(make_mask_word(70000, kModalityImage, 12346, 7) - word, 1);
}

TEST(MaskWord, SegmentsAreTheSamples) {
  const std::vector<MaskWord> words{make_mask_word(0, 0, 0), make_mask_word(0, 1, 1),
                                    make_mask_word(1, 0, 0), make_mask_word(2, 0, 0),
                                    make_mask_word(2, 0, 0)};
  EXPECT_EQ(segments_of(words), (std::vector<Segment>{{0, 2}, {2, 1}, {3, 2}}));
  EXPECT_TRUE(segments_of({}).empty());
}

TEST(MaskWord, BatchesHoldEverySegmentOnceWithLittlePadding) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<Segment> segments;
    int64_t start = 0;
    for (int i = 0; i < 40; ++i) {
      const int64_t length = 1 + static_cast<int64_t>(random() % 300);
      segments.push_back({start, length});
      start += length;
    }
    std::vector<Segment> found;
    for (const SegmentBatch& batch : batch_segments(segments, 0.2)) {
      int64_t filled = 0, longest = 0;
      for (const Segment& segment : batch.segments) {
        filled += segment.length;
        longest = std::max(longest, segment.length);
        found.push_back(segment);
      }
      const int64_t area = batch.length * static_cast<int64_t>(batch.segments.size());
      EXPECT_EQ(longest, batch.length);
      EXPECT_LE(static_cast<double>(area - filled), 0.2 * static_cast<double>(area));
    }
    std::sort(found.begin(), found.end(),
              [](const Segment& a, const Segment& b) { return a.start < b.start; });
    EXPECT_EQ(found, segments);
  }
}

TEST(MaskWord, EqualSegmentsMakeOneBatchAndOthersJoinThemWherePaddingIsAllowed) {
  const std::vector<Segment> segments{{0, 5}, {5, 5}, {10, 5}, {15, 4}};
  const auto equal = batch_segments(segments, allowed_padding(false));
  ASSERT_EQ(equal.size(), 2);
  EXPECT_EQ(equal[0].segments.size(), 3);
  EXPECT_EQ(batch_segments(segments, allowed_padding(true)).size(), 1);
}

}  // namespace
}  // namespace zea::test_mask_word
