// SPDX-License-Identifier: Apache-2.0
// Makes this rank's part of a microbatch from loaded samples: first all samples on the host, then
// the tokens that the layout gives to this rank.
#include "batch/make_microbatch.hpp"

#include <algorithm>
#include <utility>

#include "batch/microbatch_parts.hpp"
#include "core/error.hpp"

namespace zea {
namespace {

using namespace detail;

/// How many features there are of a sample's items up to each of them.
Ids features_up_to(const std::vector<ItemShape>& items) {
  Ids sums;
  for (const ItemShape& shape : items)
    sums.push_back((sums.empty() ? 0 : sums.back()) + shape.features);
  return sums;
}

/// Checks that items are images or videos as their placeholders say, unless both have the same one.
void check_placeholder(const Sample& sample, int64_t id, const EncoderSpec& encoder,
                       const std::vector<ItemShape>& items, int64_t item) {
  if (encoder.placeholder == encoder.video_placeholder) return;
  const auto index = static_cast<size_t>(item);
  const bool wants_video = id != encoder.placeholder;
  if (index >= items.size() || (items[index].frames > 0) == wants_video) return;
  throw DataError(
      sample_words(sample) + " has placeholders of " + (wants_video ? "a video" : "an image") +
      " (id " + std::to_string(id) + ") where its item " + std::to_string(item) + " is " +
      (wants_video ? "an image" : "a video") + "; pack items in the order of their placeholders");
}

/// Checks that there are as many placeholders as the encoder makes features of the sample's items.
void check_items(const Sample& sample, const EncoderSpec& encoder, int64_t placeholders,
                 const Ids& features) {
  const int64_t all = features.empty() ? 0 : features.back();
  if (placeholders == all) return;
  const bool is_audio = encoder.modality() == Modality::Audio;
  const std::string what = is_audio ? "clip" : "image", items = std::to_string(features.size());
  const std::string each = std::to_string(encoder.item_shape().features);
  throw DataError(sample_words(sample) + ", modality " + modality_name(encoder.modality()) + ": " +
                  std::to_string(placeholders) + " placeholder tokens (id " +
                  std::to_string(encoder.placeholder) + ") for " + items + " " + what + "s" +
                  (encoder.varies()
                       ? " with " + std::to_string(all) + " features of the " + encoder.name +
                             " encoder; pack the data with as many placeholders as an " + what +
                             " has features"
                       : " x " + each + " features of the " + encoder.name +
                             " encoder; pack the data with " + each + " placeholders per " + what));
}

/// An item of a modality that the model has no encoder of.
void check_strays(const Sample& sample, const ModelSpec& model) {
  for (const Item& item : sample.items)
    if (static_cast<size_t>(item.kind) >= model.encoders.size())
      throw DataError(sample_words(sample) + " has " +
                      (item.modality == Modality::Audio ? "a clip of sound" : "an image") +
                      ", but the model (" + model.family + ") has no encoder of such items");
}

void check_sample(const Sample& sample, const Ids& placeholders, const std::vector<Ids>& features,
                  const ModelSpec& model) {
  for (int32_t id : sample.tokens)
    if (!model.has_token(id))
      throw DataError(sample_words(sample) + ": token id " + std::to_string(id) +
                      " is outside the model's vocabulary of " +
                      std::to_string(model.decoder.vocabulary) +
                      "; pack the data with the model's tokenizer");
  for (size_t i = 0; i < sample.tokens.size(); ++i)
    if (sample.loss_mask[i] && sample.tokens[i] >= model.decoder.vocabulary)
      throw DataError(sample_words(sample) + ": token id " + std::to_string(sample.tokens[i]) +
                      " is a placeholder outside the model's vocabulary of " +
                      std::to_string(model.decoder.vocabulary) +
                      ", so it cannot be a target; set its loss_mask to 0");
  const int64_t tokens = static_cast<int64_t>(sample.tokens.size());
  if (model.decoder.limits_positions() && tokens > model.decoder.max_positions)
    throw DataError(sample_words(sample) + " has " + std::to_string(tokens) +
                    " tokens, more than the model's " +
                    std::to_string(model.decoder.max_positions) + " " + model.decoder.limit_name() +
                    "; cut samples shorter when packing, or "
                    "generate fewer with eval.generate_tokens");
  check_strays(sample, model);
  for (size_t encoder = 0; encoder < placeholders.size(); ++encoder)
    check_items(sample, model.encoders[encoder], placeholders[encoder], features[encoder]);
}

void append_sample(HostTokens& host, const Sample& sample, int64_t number, const ModelSpec& model) {
  const auto length = static_cast<int64_t>(sample.tokens.size());
  Ids placeholders(model.encoders.size(), 0);
  const ItemList items = list_items(sample.items);
  std::vector<std::vector<ItemShape>> shapes;
  std::vector<Ids> features;
  for (size_t e = 0; e < placeholders.size(); ++e) {
    shapes.push_back(items.shapes(static_cast<int>(e), model.encoders[e]));
    features.push_back(features_up_to(shapes.back()));
  }
  for (int64_t i = 0; i < length; ++i) {
    const int64_t id = sample.tokens[i];
    // Labels are shifted here, before tokens are distributed over ranks.
    const bool is_target = i + 1 < length && sample.loss_mask[i + 1];
    host.targets.push_back(is_target ? sample.tokens[i + 1] : -1);
    MaskWord word = make_mask_word(number, kModalityText, 0);
    for (size_t e = 0; e < placeholders.size(); ++e) {
      const EncoderSpec& encoder = model.encoders[e];
      if (!encoder.is_placeholder(id)) continue;
      const int64_t item =
          std::ranges::upper_bound(features[e], placeholders[e]++) - features[e].begin();
      check_placeholder(sample, id, encoder, shapes[e], item);
      word = make_mask_word(number, mask_modality(encoder.modality()), 1 + item, e);
      host.placeholders[e].push_back(static_cast<int64_t>(host.ids.size()));
    }
    host.words.push_back(word);
    host.ids.push_back(id < model.decoder.vocabulary ? id : 0);
  }
  check_sample(sample, placeholders, features, model);
  host.lasts.push_back(static_cast<int64_t>(host.ids.size()) - 1);
}

/// Samples one after the other.
HostTokens host_tokens(const std::vector<Sample>& samples, const ModelSpec& model) {
  HostTokens host;
  host.placeholders.resize(model.encoders.size());
  for (size_t s = 0; s < samples.size(); ++s)
    append_sample(host, samples[s], static_cast<int64_t>(s), model);
  return host;
}

}  // namespace

MicrobatchTokens tokens_of(const std::vector<Sample>& samples, const ModelSpec& model) {
  HostTokens host = host_tokens(samples, model);
  MicrobatchTokens tokens;
  tokens.words = std::move(host.words);
  for (const int64_t target : host.targets) tokens.is_target.push_back(target >= 0);
  for (const Sample& sample : samples) tokens.items += list_items(sample.items);
  return tokens;
}

Microbatch make_microbatch(const LoadedMicrobatch& loaded, const ModelSpec& model,
                           const MicrobatchOptions& options) {
  return move_to(options.device, make_packed_microbatch(loaded, model, options));
}

PackedMicrobatch make_packed_microbatch(const LoadedMicrobatch& loaded, const ModelSpec& model,
                                        const MicrobatchOptions& options) {
  return pack(make_on_host(loaded, model, options), options.device);
}

Microbatch detail::make_on_host(const LoadedMicrobatch& loaded, const ModelSpec& model,
                                const MicrobatchOptions& options) {
  HostTokens host = host_tokens(loaded.samples, model);
  draw_keys(host, loaded, options);
  Microbatch out;
  out.tokens = static_cast<int64_t>(host.ids.size());
  out.items = loaded.items;
  out.expert_rows.replicas = loaded.expert_tokens;
  const ReplicaLayout& replica = options.replica;
  out.encoders.resize(host.placeholders.size());
  if (replica.has(replica.rank, kDecoder)) fill_text(out, host, model, options);
  for (size_t encoder = 0; encoder < out.encoders.size(); ++encoder)
    if (out.items.of(static_cast<int>(encoder)) > 0)
      fill_encoder(out.encoders[encoder], loaded, host, model, static_cast<int>(encoder), options);
  out.words = std::move(host.words);
  return out;
}

}  // namespace zea
