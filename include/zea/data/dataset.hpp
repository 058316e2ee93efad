// SPDX-License-Identifier: Apache-2.0
// A data set: samples of token ids with a loss mask, and items (images) that stand at placeholder tokens. The index
// (counts per sample) is held in memory on every rank, since all plans are made from it; contents are read on demand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace zea {

/// What the plan needs to know of a sample.
struct SampleIndex {
  int64_t tokens = 0;
  int64_t items = 0;    ///< images
  int64_t targets = 0;  ///< tokens with loss, after the shift: a sample's first token is never a target
};

/// Encoded or raw bytes of one item.
struct Item {
  std::vector<uint8_t> bytes;
  /// "encoded" (JPEG or PNG, told apart by their first bytes) or "raw" (uint8, height x width x channels).
  bool raw = false;
  int64_t height = 0, width = 0, channels = 0;  ///< of raw items
};

struct Sample {
  int64_t id = 0;                  ///< position in the data set
  std::vector<int32_t> tokens;
  std::vector<uint8_t> loss_mask;  ///< 1: this token is predicted (as the target of the one before)
  std::vector<Item> items;         ///< in the order of their placeholders
  int32_t label = -1;              ///< index into classes(), or -1
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::string describe() const = 0;
  virtual const std::vector<SampleIndex>& index() const = 0;
  virtual Sample read(int64_t id) const = 0;  ///< Thread-safe. Throws DataError naming sample and fault.
  virtual int32_t image_token() const = 0;    ///< placeholder id; -1 when there are no images
  virtual const std::vector<std::string>& classes() const = 0;       ///< may be empty
  virtual const std::vector<std::string>& token_bytes() const = 0;   ///< bytes of each token id; may be empty
};

/// Opens a zea data set (see the README for its layout); checks offsets, lengths and ids against its own
/// header. Throws DataError.
std::unique_ptr<Dataset> open_dataset(const std::string& path);

}  // namespace zea
