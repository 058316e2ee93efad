// SPDX-License-Identifier: Apache-2.0
#include "full_microbatch.hpp"

#include <algorithm>

#include "zea/core/error.hpp"
#include "zea/train/training_data.hpp"

namespace zea {
namespace {

void add_item(Sample& sample, const ModelSpec& model, const EncoderSpec& encoder) {
  const int64_t features = encoder.item_shape().features;
  const auto placeholder = static_cast<int32_t>(encoder.placeholder);
  sample.tokens.insert(sample.tokens.end(), features, placeholder);
  sample.loss_mask.insert(sample.loss_mask.end(), features, 1);
  sample.items.emplace_back();
  sample.items.back().modality = encoder.modality();
  sample.items.back().kind = model.encoder_index(encoder.name);
}

/// A token that is no placeholder.
int32_t text_token(const ModelSpec& model) {
  int32_t token = 0;
  while (model.is_placeholder(token)) ++token;
  return token;
}

/// One sample of `length`: items of all encoders in turn as long as they fit, then text.
Sample make_sample(const ModelSpec& model, int64_t length) {
  Sample sample;
  const int32_t text = text_token(model);
  sample.tokens = {text};
  sample.loss_mask = {0};
  for (bool added = true; added;) {
    added = false;
    for (const EncoderSpec& encoder : model.encoders) {
      const auto tokens = static_cast<int64_t>(sample.tokens.size());
      if (tokens + encoder.item_shape().features >= length) continue;
      add_item(sample, model, encoder);
      added = true;
    }
  }
  sample.tokens.resize(length, text);
  sample.loss_mask.resize(length, 1);
  return sample;
}

}  // namespace

LoadedMicrobatch make_full_microbatch(const Plan& plan) {
  const ModelSpec& model = plan.model;
  int64_t length = plan.options.data.row_tokens;
  if (model.decoder.learned_positions) length = std::min(length, model.decoder.max_positions);
  const int64_t tokens = plan.options.data.row_tokens * plan.options.data.rows_per_microbatch;
  LoadedMicrobatch loaded;
  for (int64_t i = 0; i < std::max<int64_t>(1, tokens / length); ++i) {
    loaded.samples.push_back(make_sample(model, length));
    loaded.items += list_items(loaded.samples.back().items);
  }
  for (const EncoderSpec& encoder : model.encoders)
    if (loaded.items.of(model.encoder_index(encoder.name)) == 0)
      throw PlanError("rows of data.row_tokens = " + std::to_string(length) +
                      " tokens hold no item of " + encoder.name + " beside the others: one has " +
                      std::to_string(encoder.item_shape().features) +
                      " tokens; raise data.row_tokens to measure");
  for (const ItemDecoding& decoding : loading_of(plan).encoders) {
    const int64_t items = loaded.items.of(static_cast<int>(loaded.values.size()));
    loaded.values.emplace_back(decoding.values() * static_cast<size_t>(items), 0.5F);
  }
  return loaded;
}

}  // namespace zea
