// SPDX-License-Identifier: Apache-2.0
// Memory that all ranks of a communicator map: one segment of each rank, or none at all with the
// same reason on all ranks. SharedBuffers finds the segment that contains a pointer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/collectives.hpp"
#include "comm/node/segment.hpp"

namespace zea {

class SharedMemory {
 public:
  /// `memory` is null on all ranks if any rank failed; `why_not` is then equal on all.
  struct Result {
    std::shared_ptr<SharedMemory> memory;
    std::string why_not;
  };

  /// Makes `bytes` of memory for this rank. Fails if that exceeds `limit`. Collective over `ranks`.
  static Result build(Collectives& ranks, int64_t bytes, int64_t limit);

  std::byte* data(int rank) const { return segments_[rank].data(); }
  int64_t bytes(int rank) const { return segments_[rank].bytes(); }
  /// A unique number, equal on all ranks and not 0.
  uint64_t id() const { return id_; }

 private:
  std::vector<SharedSegment> segments_;
  uint64_t id_ = 0;
};

/// Where peers find a buffer: `offset` bytes into this rank's part of a shared memory.
struct SharedAddress {
  std::shared_ptr<SharedMemory> memory;  ///< null: ordinary memory
  int64_t offset = 0;
};

class SharedBuffers {
 public:
  SharedBuffers(int rank, int64_t limit) : rank_(rank), limit_(limit) {}

  /// Returns null if shared memory is not available, with the reason in why_not(). The caller owns
  /// the memory. Collective over `ranks`.
  std::shared_ptr<void> allocate(Collectives& ranks, int64_t bytes);
  /// Returns where [data, data + bytes) lies.
  SharedAddress find(const void* data, int64_t bytes) const;
  /// The reason of the last failed allocation; empty if none has failed.
  const std::string& why_not() const { return why_not_; }

 private:
  int rank_;
  int64_t limit_;
  std::map<const std::byte*, std::weak_ptr<SharedMemory>> by_begin_;
  std::string why_not_;
};

}  // namespace zea
