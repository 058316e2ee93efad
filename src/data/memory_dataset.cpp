// SPDX-License-Identifier: Apache-2.0
#include "zea/data/memory_dataset.hpp"

#include <algorithm>
#include <utility>

#include "zea/core/error.hpp"

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
      classes_(std::move(classes)),
      token_bytes_(std::move(token_bytes)),
      name_(std::move(name)) {
  add_kind(kinds_, Modality::Image, -1);
  add_kind(kinds_, Modality::Audio, -1);
  for (size_t i = 0; i < samples_.size(); ++i) {
    Sample& sample = samples_[i];
    sample.id = static_cast<int64_t>(i);
    check_sample(sample);
    max_token_ =
        std::max(max_token_, *std::max_element(sample.tokens.begin(), sample.tokens.end()));
    assign_kinds(sample.tokens, kinds_, sample.items);
    index_.push_back({static_cast<int64_t>(sample.tokens.size()), list_items(sample.items),
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
    if (token < 0 || (!token_bytes_.empty() && token >= static_cast<int32_t>(token_bytes_.size())))
      throw DataError(where + " holds token id " + std::to_string(token) +
                      " outside the vocabulary");
}

Sample MemoryDataset::read(int64_t id) const {
  if (id < 0 || id >= static_cast<int64_t>(samples_.size()))
    throw DataError(name_ + ": there is no sample " + std::to_string(id) + "; it holds " +
                    std::to_string(samples_.size()));
  return samples_[static_cast<size_t>(id)];
}

}  // namespace zea
