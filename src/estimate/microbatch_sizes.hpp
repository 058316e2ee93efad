// SPDX-License-Identifier: Apache-2.0
// What memory depends on of a microbatch: how many tokens, targets and items it has, of which
// shapes, and how attention batches them.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/sample_index.hpp"
#include "spec/model_spec.hpp"

namespace zea {

/// One batched attention call: `segments` segments padded to `length` hold `tokens` tokens.
struct AttentionSizes {
  int64_t segments = 0, length = 0, tokens = 0;

  int64_t padded_tokens() const { return segments * length; }
  bool padded() const { return padded_tokens() != tokens; }
  bool operator==(const AttentionSizes&) const = default;
};

/// The items of an encoder in a microbatch.
struct EncoderSizes {
  int64_t items = 0, tokens = 0, features = 0;
  int64_t patches = 0;  ///< of images
  int64_t beyond = 0;   ///< rows of the projector beyond features, of images that are resampled
  /// For each of BlockSpec::attention.
  std::vector<std::vector<AttentionSizes>> attention = {};

  bool operator==(const EncoderSizes&) const = default;
};

/// All that the memory of a microbatch depends on.
struct MicrobatchSizes {
  int64_t samples = 0, tokens = 0, targets = 0;
  ItemList items;
  std::vector<AttentionSizes> text;
  std::vector<EncoderSizes> encoders;

  bool operator==(const MicrobatchSizes&) const = default;
};

/// The sizes of a microbatch of these samples.
MicrobatchSizes microbatch_sizes(const ModelSpec& model, const std::vector<SampleIndex>& samples);

/// The same with other items.
MicrobatchSizes with_items(const ModelSpec& model, const MicrobatchSizes& sizes,
                           const ItemList& items);

/// Of the encoder's `items` the share with the most tokens, where they are dealt to so many.
ItemList largest_share(const ModelSpec& model, const ItemList& items, int encoder, int takers);

}  // namespace zea
