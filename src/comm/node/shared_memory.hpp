// SPDX-License-Identifier: Apache-2.0
// One segment from each rank of a communicator, mapped by all of them; or none at all, with the
// reason, since ranks agree on whether every one of them could.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "node/segment.hpp"
#include "zea/comm/collectives.hpp"

namespace zea {

class SharedMemory {
 public:
  /// `memory` is null on all ranks where any rank failed; `why_not` is then equal on all.
  struct Result {
    std::shared_ptr<SharedMemory> memory;
    std::string why_not;
  };

  /// Collective over `ranks`. Asking for more than `limit` bytes fails.
  static Result build(Collectives& ranks, int64_t bytes, int64_t limit);

  std::byte* data(int rank) const { return segments_[rank].data(); }
  int64_t bytes(int rank) const { return segments_[rank].bytes(); }
  /// Equal on all ranks, not 0; no other memory has it.
  uint64_t id() const { return id_; }

 private:
  std::vector<SharedSegment> segments_;
  uint64_t id_ = 0;
};

}  // namespace zea
