// SPDX-License-Identifier: Apache-2.0
// The tokens of a row: what each of them is (mask words), which keys it sees, and its position.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "spec/item_spec.hpp"
#include "spec/module_spec.hpp"

namespace zea {

// A mask is a word per token, never a matrix: which sample of the microbatch the token belongs to,
// and which item (this image, not that one) of which modality. Attention, packing and costs all
// read the same words.

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

// The keys that each token of a row sees, read off the mask words: one run of keys. Costs,
// distributions and attention all read this.

/// Token t of a row sees the keys [begins[t], ends[t]), itself among them, of its sample (item),
/// which begins at samples[t]. These lie one after the other, so none ever falls along the row.
struct Visibility {
  std::vector<int64_t> begins, ends;
  std::vector<int64_t> samples;

  int64_t tokens() const { return static_cast<int64_t>(begins.size()); }
};

/// Returns causal attention inside each sample. With `both_ways`, each run of image tokens of a
/// sample (an image, or images without text between them) is bidirectional. Keys `window` tokens or
/// more before a token are not seen (0: all are).
Visibility visible_text(const std::vector<MaskWord>& words, bool both_ways, int64_t window = 0);
/// Pairs of a token and one that it sees, in a sample of text.
double visible_pairs(int64_t tokens, int64_t window);
/// Every token sees all of its segment: an encoder's items.
Visibility visible_segments(const std::vector<Segment>& segments);

// Where the tokens of a microbatch stand: in their samples, and those of images in a grid.

/// A token's M-RoPE position (time, row, column). Rows and columns are whole numbers; some models
/// have fractional times. Single precision, as in transformers.
using TokenPosition = std::array<float, 3>;

/// Returns the position of each token; samples begin at 0. Text goes on by 1 in all three. The
/// features of an image that begins at p stand at (p, p + row, p + column), and what follows goes
/// on behind its longer side (M-RoPE, arXiv:2409.12191); those of a video's moments likewise, in
/// time a step further each (Qwen2-VL), or where text stands between them as so many images
/// (Qwen3-VL). `items`: the shapes of each encoder's, in the order of their features; those without
/// a width, such as audio, are counted as text is. Audio that follows features of a video without
/// text between them is the video's audio track, and both begin at one position (Qwen-Omni).
std::vector<TokenPosition> grid_positions(const std::vector<MaskWord>& words,
                                          const std::vector<std::vector<ItemShape>>& items);

}  // namespace zea
