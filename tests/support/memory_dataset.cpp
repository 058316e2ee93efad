// SPDX-License-Identifier: Apache-2.0
#include "support/memory_dataset.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace zea {

MemoryDataset::MemoryDataset(std::vector<Sample> samples, int32_t image_token,
                             std::vector<std::string> classes, std::vector<std::string> token_bytes,
                             std::string name, int32_t audio_token)
    : MemoryDataset(
          std::move(samples),
          std::vector<ItemKind>{{Modality::Image, image_token}, {Modality::Audio, audio_token}},
          std::move(classes), std::move(token_bytes), std::move(name)) {}

MemoryDataset::MemoryDataset(std::vector<Sample> samples, std::vector<ItemKind> kinds,
                             std::vector<std::string> classes, std::vector<std::string> token_bytes,
                             std::string name)
    : samples_(std::move(samples)),
      kinds_(std::move(kinds)),
      texts_{std::move(classes), std::move(token_bytes), {}},
      name_(std::move(name)) {
  add_kind(kinds_, {Modality::Image});
  add_kind(kinds_, {Modality::Audio});
  for (size_t i = 0; i < samples_.size(); ++i) {
    Sample& sample = samples_[i];
    sample.id = static_cast<int64_t>(i);
    check_sample(sample);
    max_token_ =
        std::max(max_token_, *std::max_element(sample.tokens.begin(), sample.tokens.end()));
    assign_kinds(sample.tokens, kinds_, sample.items);
    index_.add({static_cast<int64_t>(sample.tokens.size()), list_items(sample.items),
                count_targets(sample.loss_mask)});
  }
}

void MemoryDataset::check_sample(const Sample& sample) const {
  const std::string where = name_ + ": sample " + std::to_string(sample.id);
  if (sample.tokens.empty()) throw DataError(where + " has no tokens");
  if (sample.loss_mask.size() != sample.tokens.size())
    throw DataError(where + " has " + std::to_string(sample.tokens.size()) + " tokens but " +
                    std::to_string(sample.loss_mask.size()) + " entries of loss_mask");
  for (int32_t token : sample.tokens)
    if (token < 0 ||
        (!texts_.token_bytes.empty() && token >= static_cast<int32_t>(texts_.token_bytes.size())))
      throw DataError(where + " holds token id " + std::to_string(token) +
                      " outside the vocabulary");
}

Sample MemoryDataset::read(int64_t id) const {
  if (id < 0 || id >= static_cast<int64_t>(samples_.size()))
    throw DataError(name_ + ": there is no sample " + std::to_string(id) + "; it holds " +
                    std::to_string(samples_.size()));
  return samples_[static_cast<size_t>(id)];
}

int64_t count_targets(const std::vector<uint8_t>& loss_mask) {
  return loss_mask.empty() ? 0 : std::count(loss_mask.begin() + 1, loss_mask.end(), uint8_t{1});
}

void check_placeholders(const Dataset& dataset, const Sample& sample,
                        const std::vector<int64_t>& tokens_per_item) {
  const ItemList counts = list_items(sample.items);
  for (size_t kind = 0; kind < dataset.kinds().size(); ++kind) {
    const auto& [modality, token, features, varied, video_token] = dataset.kinds()[kind];
    const bool is_audio = modality == Modality::Audio;
    const int64_t each = kind < tokens_per_item.size() ? tokens_per_item[kind] : 0;
    const int64_t items = counts.of(static_cast<int>(kind));
    const int64_t found =
        token < 0 ? 0 : std::count(sample.tokens.begin(), sample.tokens.end(), token);
    if (found == items * each) continue;
    throw DataError(dataset.describe() + ": sample " + std::to_string(sample.id) + " has " +
                    std::to_string(found) + (is_audio ? " audio" : " image") +
                    " placeholders (token " + std::to_string(token) + "), but its " +
                    std::to_string(items) + (is_audio ? " clips" : " images") + " make " +
                    std::to_string(items * each) + " features (" + std::to_string(each) +
                    " each); pack it with that many for each");
  }
}

}  // namespace zea
