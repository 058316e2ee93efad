// SPDX-License-Identifier: Apache-2.0
// A mask is a word per token, never a matrix: which sample of the microbatch the token belongs to,
// and which item (this image, not that one) of which modality. Attention, packing and costs all
// read the same words.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/item_spec.hpp"

namespace zea {

/// sample << 40 | modality << 32 | encoder << 24 | item; modality 0 is text, of which the others
/// are 0. Items of an encoder are told apart, and encoders of one modality.
using MaskWord = int64_t;

inline constexpr int64_t kModalityText = 0;
inline constexpr int64_t kModalityImage = 1;
inline constexpr int64_t kModalityAudio = 2;

constexpr int64_t mask_modality(Modality modality) {
  return modality == Modality::Image ? kModalityImage : kModalityAudio;
}

/// `encoder` is its index in ModelSpec::encoders.
constexpr MaskWord make_mask_word(int64_t sample, int64_t modality, int64_t item,
                                  int64_t encoder = 0) {
  return sample << 40 | modality << 32 | encoder << 24 | item;
}
constexpr int64_t word_sample(MaskWord word) {
  return word >> 40;
}
constexpr int64_t word_modality(MaskWord word) {
  return (word >> 32) & 0xff;
}
constexpr int64_t word_encoder(MaskWord word) {
  return (word >> 24) & 0xff;
}

/// A run of tokens that attend among themselves and to nothing outside.
struct Segment {
  int64_t start;
  int64_t length;

  bool operator==(const Segment&) const = default;
};

/// The samples of a row of words, in order.
std::vector<Segment> segments_of(const std::vector<MaskWord>& words);

/// Segments that one batched attention call computes: padded on the right to `length`, which for
/// causal attention needs no mask, since no real query sees what stands after it.
struct SegmentBatch {
  int64_t length;
  std::vector<Segment> segments;
};

/// The part of a batch that may be padding: without causal attention padding would be seen.
constexpr double allowed_padding(bool causal) {
  return causal ? 0.2 : 0;
}

/// Groups segments of similar length: short ones together, at most `padding` of the batch being
/// padding.
std::vector<SegmentBatch> batch_segments(const std::vector<Segment>& segments, double padding);

}  // namespace zea
