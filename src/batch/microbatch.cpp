// SPDX-License-Identifier: Apache-2.0
// From loaded samples to this rank's part of a microbatch: first all samples on the host, then what
// the layout gives to this rank.
#include "zea/batch/make_microbatch.hpp"

#include "microbatch_parts.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

using namespace detail;

/// As many placeholders as the encoder makes features of the sample's items.
void check_items(const Sample& sample, int encoder, int64_t placeholders, const ModelSpec& model) {
  const std::string name = model.encoders()[static_cast<size_t>(encoder)];
  const int64_t features = model.item_shape(name).features;
  const int64_t items = count_items(sample.items).of(encoder);
  if (placeholders == items * features) return;
  const bool is_audio = model.modality(name) == Modality::Audio;
  const std::string what = is_audio ? "clip" : "image";
  throw DataError("sample " + std::to_string(sample.id) + ", modality " +
                  (is_audio ? "audio" : "image") + ": " + std::to_string(placeholders) +
                  " placeholder tokens (id " + std::to_string(model.placeholder(name)) + ") for " +
                  std::to_string(items) + " " + what + "s x " + std::to_string(features) +
                  " features of the " + name + " encoder; pack the data with " +
                  std::to_string(features) + " placeholders per " + what);
}

/// An item of a modality that the model has no encoder of.
void check_strays(const Sample& sample, const ModelSpec& model) {
  for (const Item& item : sample.items)
    if (static_cast<size_t>(item.kind) >= model.encoders().size())
      throw DataError("sample " + std::to_string(sample.id) + " has " +
                      (item.modality == Modality::Audio ? "a clip of sound" : "an image") +
                      ", but the model (" + model.family + ") has no encoder of such items");
}

void check_sample(const Sample& sample, const Ids& placeholders, const ModelSpec& model) {
  for (int32_t id : sample.tokens)
    if (id < 0 || id >= model.text.vocabulary)
      throw DataError("sample " + std::to_string(sample.id) + ": token id " + std::to_string(id) +
                      " is outside the model's vocabulary of " +
                      std::to_string(model.text.vocabulary) +
                      "; pack the data with the model's tokenizer");
  const int64_t tokens = static_cast<int64_t>(sample.tokens.size());
  if (model.text.learned_positions && tokens > model.text.max_positions)
    throw DataError("sample " + std::to_string(sample.id) + " has " + std::to_string(tokens) +
                    " tokens, more than the model's " + std::to_string(model.text.max_positions) +
                    " learned positions (n_positions); cut samples shorter when packing, or "
                    "generate fewer with eval.generate_tokens");
  check_strays(sample, model);
  for (size_t encoder = 0; encoder < placeholders.size(); ++encoder)
    check_items(sample, static_cast<int>(encoder), placeholders[encoder], model);
}

void append_sample(HostTokens& host, const Sample& sample, int64_t number, const ModelSpec& model) {
  const auto length = static_cast<int64_t>(sample.tokens.size());
  const std::vector<std::string> encoders = model.encoders();
  Ids placeholders(encoders.size(), 0);
  for (int64_t i = 0; i < length; ++i) {
    const int64_t id = sample.tokens[i];
    // Labels are shifted here, before tokens are dealt to ranks.
    const bool is_target = i + 1 < length && sample.loss_mask[i + 1];
    host.targets.push_back(is_target ? sample.tokens[i + 1] : -1);
    MaskWord word = make_mask_word(number, kModalityText, 0);
    for (size_t e = 0; e < encoders.size(); ++e) {
      if (id != model.placeholder(encoders[e])) continue;
      const int64_t item = placeholders[e]++ / model.item_shape(encoders[e]).features;
      word = make_mask_word(number, mask_modality(model.modality(encoders[e])), 1 + item, e);
      host.placeholders[e].push_back(static_cast<int64_t>(host.ids.size()));
    }
    host.words.push_back(word);
    host.ids.push_back(id);
  }
  check_sample(sample, placeholders, model);
  host.lasts.push_back(static_cast<int64_t>(host.ids.size()) - 1);
}

}  // namespace

Microbatch make_microbatch(const LoadedMicrobatch& loaded, const ModelSpec& model,
                           const MicrobatchOptions& options) {
  HostTokens host;
  host.placeholders.resize(model.encoders().size());
  for (size_t s = 0; s < loaded.samples.size(); ++s)
    append_sample(host, loaded.samples[s], static_cast<int64_t>(s), model);
  Microbatch out;
  out.tokens = static_cast<int64_t>(host.ids.size());
  out.items = loaded.items;
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
