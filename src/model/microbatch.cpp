// SPDX-License-Identifier: Apache-2.0
// From loaded samples to this rank's part of a microbatch: first all samples on the host, then what
// the layout gives to this rank.
#include "zea/model/microbatch.hpp"

#include "microbatch_parts.hpp"
#include "zea/core/error.hpp"
#include "zea/model/index_tensor.hpp"

namespace zea {
namespace {

using namespace detail;

void check_sample(const Sample& sample, int64_t placeholders, const ModelSpec& model) {
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
  const int64_t features = model.vision ? model.vision->features() : 0;
  const int64_t items = static_cast<int64_t>(sample.items.size());
  if (placeholders != items * features)
    throw DataError("sample " + std::to_string(sample.id) +
                    ", modality image: " + std::to_string(placeholders) +
                    " placeholder tokens (id " + std::to_string(model.image_token) + ") for " +
                    std::to_string(items) + " images x " + std::to_string(features) +
                    " features of the vision encoder; pack the data with " +
                    std::to_string(features) + " placeholders per image");
}

void append_sample(HostTokens& host, const Sample& sample, int64_t number, const ModelSpec& model) {
  const int64_t features = model.vision ? model.vision->features() : 0;
  const auto length = static_cast<int64_t>(sample.tokens.size());
  int64_t placeholders = 0;
  for (int64_t i = 0; i < length; ++i) {
    const int64_t id = sample.tokens[i];
    // Labels are shifted here, before tokens are dealt to ranks.
    const bool is_target = i + 1 < length && sample.loss_mask[i + 1];
    host.targets.push_back(is_target ? sample.tokens[i + 1] : -1);
    if (model.vision && id == model.image_token) {
      host.words.push_back(make_mask_word(number, kModalityImage, 1 + placeholders / features));
      host.placeholders.push_back(static_cast<int64_t>(host.ids.size()));
      ++placeholders;
    } else {
      host.words.push_back(make_mask_word(number, kModalityText, 0));
    }
    host.ids.push_back(id);
  }
  check_sample(sample, placeholders, model);
  host.lasts.push_back(static_cast<int64_t>(host.ids.size()) - 1);
}

RowTransfer make_transfer(const std::vector<RowRuns>& held, const std::vector<RowRuns>& needed,
                          int rank, at::Device device) {
  const RowExchange exchange = plan_row_exchange(held, needed, rank);
  RowTransfer transfer;
  Ids sent, received;
  for (const RowRuns& runs : exchange.sends) {
    transfer.sent_counts.push_back(count_rows(runs));
    for (int64_t place : places_of_rows(runs, held[rank])) sent.push_back(place);
  }
  for (const RowRuns& runs : exchange.receives) {
    transfer.received_counts.push_back(count_rows(runs));
    for (int64_t place : places_of_rows(runs, needed[rank])) received.push_back(place);
  }
  transfer.sent_rows = index_tensor(sent, device);
  transfer.received_rows = index_tensor(received, device);
  transfer.needed = count_rows(needed[rank]);
  return transfer;
}

void fill_transfers(Microbatch& out, const HostTokens& host, const VisionConfig& vision,
                    const MicrobatchOptions& options) {
  const std::vector<RowRuns> made = made_features(out.items, vision, options.replica);
  const std::vector<RowRuns> taken = taken_features(host, options);
  out.features = make_transfer(made, taken, options.replica.rank, options.device);
  out.feature_gradients = make_transfer(taken, made, options.replica.rank, options.device);
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
  fill_text(out, host, model, options);
  if (out.items > 0) {
    fill_images(out, loaded, *model.vision, options);
    if (options.replica.ranks() > 1) fill_transfers(out, host, *model.vision, options);
  }
  out.words = std::move(host.words);
  return out;
}

}  // namespace zea
