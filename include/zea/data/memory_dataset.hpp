// SPDX-License-Identifier: Apache-2.0
// A data set held in memory, made from samples: for tests and for programs that make their own
// samples.
#pragma once

#include <string>
#include <vector>

#include "zea/data/dataset.hpp"

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
  const std::vector<SampleIndex>& index() const override { return index_; }
  Sample read(int64_t id) const override;
  const std::vector<ItemKind>& kinds() const override { return kinds_; }
  int32_t max_token() const override { return max_token_; }
  const std::vector<std::string>& classes() const override { return classes_; }
  const std::vector<std::string>& token_bytes() const override { return token_bytes_; }

 private:
  void check_sample(const Sample& sample) const;

  std::vector<Sample> samples_;
  std::vector<SampleIndex> index_;
  std::vector<ItemKind> kinds_;
  int32_t max_token_ = -1;
  std::vector<std::string> classes_;
  std::vector<std::string> token_bytes_;
  std::string name_;
};

}  // namespace zea
