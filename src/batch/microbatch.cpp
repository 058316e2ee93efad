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
void check_items(const Sample& sample, const std::string& encoder, int64_t placeholders,
                 const ModelSpec& model) {
  const bool hears = encoder == "audio";
  const bool is_there = hears ? model.audio.has_value() : model.vision.has_value();
  const int64_t features = is_there ? model.item_shape(encoder).features : 0;
  const int64_t items = count_items(sample.items).of(encoder);
  if (placeholders == items * features && (is_there || items == 0)) return;
  const std::string what = hears ? "clip" : "image";
  throw DataError(
      "sample " + std::to_string(sample.id) + ", modality " + (hears ? "audio" : "image") + ": " +
      std::to_string(placeholders) + " placeholder tokens (id " +
      std::to_string(model.placeholder(encoder)) + ") for " + std::to_string(items) + " " + what +
      "s x " + std::to_string(features) + " features of the " + encoder +
      " encoder; pack the data with " + std::to_string(features) + " placeholders per " + what);
}

void check_sample(const Sample& sample, const std::map<std::string, int64_t>& placeholders,
                  const ModelSpec& model) {
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
  for (const std::string encoder : {"vision", "audio"})
    check_items(sample, encoder, placeholders.at(encoder), model);
}

void append_sample(HostTokens& host, const Sample& sample, int64_t number, const ModelSpec& model) {
  const auto length = static_cast<int64_t>(sample.tokens.size());
  std::map<std::string, int64_t> placeholders{{"vision", 0}, {"audio", 0}};
  for (int64_t i = 0; i < length; ++i) {
    const int64_t id = sample.tokens[i];
    // Labels are shifted here, before tokens are dealt to ranks.
    const bool is_target = i + 1 < length && sample.loss_mask[i + 1];
    host.targets.push_back(is_target ? sample.tokens[i + 1] : -1);
    MaskWord word = make_mask_word(number, kModalityText, 0);
    for (const std::string& encoder : model.encoders()) {
      if (id != model.placeholder(encoder)) continue;
      const int64_t item = placeholders[encoder]++ / model.item_shape(encoder).features;
      word = make_mask_word(number, modality_of(encoder), 1 + item);
      host.placeholders[encoder].push_back(static_cast<int64_t>(host.ids.size()));
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
  for (size_t s = 0; s < loaded.samples.size(); ++s)
    append_sample(host, loaded.samples[s], static_cast<int64_t>(s), model);
  Microbatch out;
  out.tokens = static_cast<int64_t>(host.ids.size());
  out.items = loaded.items;
  const ReplicaLayout& replica = options.replica;
  if (replica.has(replica.rank, "llm")) fill_text(out, host, model, options);
  for (const std::string& encoder : model.encoders())
    if (out.items.of(encoder) > 0) fill_encoder(out, loaded, host, model, encoder, options);
  out.words = std::move(host.words);
  return out;
}

}  // namespace zea
