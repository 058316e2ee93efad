// SPDX-License-Identifier: Apache-2.0
// A data set held in memory, made from samples.
#pragma once

#include <string>
#include <vector>

#include "data/dataset.hpp"

namespace zea {

class MemoryDataset : public Dataset {
 public:
  /// Sample i gets id i. Throws DataError on a sample that no file could hold either (see
  /// check_sample).
  explicit MemoryDataset(std::vector<Sample> samples, int32_t image_token = -1,
                         std::vector<std::string> classes = {},
                         std::vector<std::string> token_bytes = {}, std::string name = "memory",
                         int32_t audio_token = -1);
  /// The same for a model of these kinds of items.
  MemoryDataset(std::vector<Sample> samples, std::vector<ItemKind> kinds,
                std::vector<std::string> classes = {}, std::vector<std::string> token_bytes = {},
                std::string name = "memory");

  std::string describe() const override { return name_; }
  const SampleTable& index() const override { return index_; }
  Sample read(int64_t id) const override;
  const std::vector<ItemKind>& kinds() const override { return kinds_; }
  int32_t max_token() const override { return max_token_; }
  const DatasetTexts& texts() const override { return texts_; }

 private:
  void check_sample(const Sample& sample) const;

  std::vector<Sample> samples_;
  SampleTable index_;
  std::vector<ItemKind> kinds_;
  int32_t max_token_ = -1;
  DatasetTexts texts_;
  std::string name_;
};

/// Tokens of a loss mask that are targets: those after the first with mask 1.
int64_t count_targets(const std::vector<uint8_t>& loss_mask);

/// Throws DataError, naming sample, modality and both counts, unless `sample` has exactly so many
/// placeholders for each of its items: by kind, 0 of those beyond.
void check_placeholders(const Dataset& dataset, const Sample& sample,
                        const std::vector<int64_t>& tokens_per_item);

}  // namespace zea
