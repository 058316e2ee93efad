// SPDX-License-Identifier: Apache-2.0
// Reused memory for what is gathered for one unit at a time: parameters and unsharded gradients.
// Blocks that were given back serve later requests; when none fits they are freed first, so no more
// is held than was once in use together.
#pragma once

#include <vector>

#include "zea/parallel/ledger.hpp"

namespace zea {

class BufferRing {
 public:
  BufferRing(Ledger& ledger, at::ScalarType dtype, at::Device device)
      : ledger_(ledger), dtype_(dtype), device_(device) {}

  /// At least `elements`; contents are whatever was there.
  Buffer acquire(int64_t elements);
  void give_back(Buffer buffer);

 private:
  Ledger& ledger_;
  at::ScalarType dtype_;
  at::Device device_;
  std::vector<Buffer> free_;
};

}  // namespace zea
