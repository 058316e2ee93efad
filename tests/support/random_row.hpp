// SPDX-License-Identifier: Apache-2.0
// Rows of mask words for tests: random packed ones, and plain samples.
#pragma once

#include <random>
#include <vector>

#include "layout/visibility.hpp"

namespace zea::testing {

/// Samples of text with images of `image` tokens in some of them, also without text between them.
inline std::vector<MaskWord> random_row(int64_t tokens, int64_t image, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  std::vector<MaskWord> words;
  for (int64_t sample = 0; static_cast<int64_t>(words.size()) < tokens; ++sample) {
    for (int64_t item = 0; item < 1 + below(3); ++item) {
      if (item == 0 || below(2) == 0)
        words.insert(words.end(), 1 + below(3 * image), make_mask_word(sample, kModalityText, 0));
      if (below(2) == 0)
        words.insert(words.end(), image, make_mask_word(sample, kModalityImage, item + 1));
    }
  }
  words.resize(tokens);
  return words;
}

/// One sample of text after the other.
inline std::vector<MaskWord> samples_of(const std::vector<int64_t>& lengths) {
  std::vector<MaskWord> words;
  for (size_t sample = 0; sample < lengths.size(); ++sample)
    words.insert(words.end(), lengths[sample],
                 make_mask_word(static_cast<int64_t>(sample), kModalityText, 0));
  return words;
}

}  // namespace zea::testing
