// SPDX-License-Identifier: Apache-2.0
// The buffers that were allocated where peers can reach them: finds for a pointer the memory it
// lies in, and the peers' view of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "node/shared_memory.hpp"

namespace zea {

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
