// SPDX-License-Identifier: Apache-2.0
// One segment from each rank of a communicator, mapped by all of them; or none at all, with the
// reason, since ranks agree on whether every one of them could. And the buffers that were allocated
// there, where peers can reach them: for a pointer, the memory it lies in.
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

/// Where peers find a buffer: offset bytes into this rank's part of a shared memory.
struct SharedAddress {
  std::shared_ptr<SharedMemory> memory;  ///< null: ordinary memory
  int64_t offset = 0;
};

class SharedBuffers {
 public:
  SharedBuffers(int rank, int64_t limit) : rank_(rank), limit_(limit) {}

  /// Collective over `ranks`; null where shared memory cannot be had, with the reason in
  /// why_not(). Whoever holds the pointer owns the memory; this only knows of it.
  std::shared_ptr<void> allocate(Collectives& ranks, int64_t bytes);
  /// Where [data, data + bytes) lies.
  SharedAddress find(const void* data, int64_t bytes) const;
  /// Why the last allocation that failed did; empty where none has.
  const std::string& why_not() const { return why_not_; }

 private:
  int rank_;
  int64_t limit_;
  std::map<const std::byte*, std::weak_ptr<SharedMemory>> by_begin_;
  std::string why_not_;
};

}  // namespace zea
