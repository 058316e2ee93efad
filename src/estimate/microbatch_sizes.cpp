// SPDX-License-Identifier: Apache-2.0
#include "estimate/microbatch_sizes.hpp"

#include "layout/item_row.hpp"
#include "layout/visibility.hpp"

namespace zea {
namespace {

std::vector<AttentionSizes> attention_sizes(const std::vector<Segment>& segments, bool causal) {
  std::vector<AttentionSizes> sizes;
  for (const SegmentBatch& batch : batch_segments(segments, allowed_padding(causal))) {
    sizes.push_back({static_cast<int64_t>(batch.segments.size()), batch.length, 0});
    for (const Segment& segment : batch.segments) sizes.back().tokens += segment.length;
  }
  return sizes;
}

EncoderSizes encoder_sizes(const EncoderSpec& encoder, const std::vector<ItemShape>& items) {
  EncoderSizes sizes{.items = static_cast<int64_t>(items.size())};
  for (const ItemShape& item : items) {
    sizes.tokens += item.tokens;
    sizes.features += item.features;
    sizes.beyond += item.projected() / item.merge - item.features;
    if (encoder.modality() != Modality::Image) continue;
    const PatchInput& input = encoder.patches();
    const bool are_all = input.learned_tokens() == 0;  // ends of rows, too
    sizes.patches += are_all ? item.tokens : item.tiles * input.patches_of(item);
  }
  for (const AttentionSpec& way : encoder.block.attention)
    sizes.attention.push_back(attention_sizes(segments_of_items(items, way.window > 0), false));
  return sizes;
}

}  // namespace

MicrobatchSizes with_items(const ModelSpec& model, const MicrobatchSizes& sizes,
                           const ItemList& items) {
  MicrobatchSizes other = sizes;
  other.items = items;
  other.encoders.clear();
  for (size_t e = 0; e < model.encoders.size(); ++e) {
    const EncoderSpec& encoder = model.encoders[e];
    other.encoders.push_back(encoder_sizes(encoder, items.shapes(static_cast<int>(e), encoder)));
  }
  return other;
}

ItemList largest_share(const ModelSpec& model, const ItemList& items, int encoder, int takers) {
  const EncoderSpec& spec = model.encoders[static_cast<size_t>(encoder)];
  const std::vector<ItemShape> all = items.shapes(encoder, spec);
  int64_t most = -1;
  ItemList largest;
  for (const std::vector<int64_t>& share : distribute_items(all, model, encoder, takers)) {
    int64_t tokens = 0;
    for (const int64_t item : share) tokens += all[item].tokens;
    if (tokens <= most) continue;
    most = tokens;
    largest = {};
    for (const int64_t item : share) largest.add(encoder, 1, all[item]);
  }
  return largest;
}

MicrobatchSizes microbatch_sizes(const ModelSpec& model, const std::vector<SampleIndex>& samples) {
  MicrobatchSizes sizes;
  ItemList items;
  std::vector<Segment> text;
  for (const SampleIndex& sample : samples) {
    text.push_back({sizes.tokens, sample.tokens});
    sizes.tokens += sample.tokens;
    sizes.targets += sample.targets;
    items += sample.items;
  }
  sizes.samples = static_cast<int64_t>(samples.size());
  sizes.text = attention_sizes(text, true);
  return with_items(model, sizes, items);
}

}  // namespace zea
