// SPDX-License-Identifier: Apache-2.0
// The entries that samples were packed from, where a data set's file names them.
#pragma once

#include <optional>
#include <string>

#include "data/contents.hpp"

namespace zea::detail {

class SampleNames {
 public:
  /// Throws DataError unless there is a name for each sample, or none at all.
  SampleNames(const H5File& file, size_t samples, int64_t held_bytes);
  /// Sample::source of a sample; throws DataError where its offsets cannot be.
  std::string of(const H5File& file, size_t sample) const;

 private:
  std::optional<Contents<int64_t>> offsets_;
  std::optional<Contents<uint8_t>> values_;
};

}  // namespace zea::detail
