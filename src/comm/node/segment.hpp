// SPDX-License-Identifier: Apache-2.0
// Memory that the processes of a node share: files in /dev/shm that never have a name, so that a
// killed job leaves nothing behind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/system.hpp"

namespace zea {

/// Throws a CommError that says what failed, and why: `code` is an errno.
[[noreturn]] void throw_system_error(const std::string& what, int code);

/// A mapping of shared memory; the memory lives as long as any process maps it.
class SharedSegment {
 public:
  SharedSegment() = default;
  /// Maps `bytes` of an open file.
  SharedSegment(int file, int64_t bytes);
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// Makes a file of zeroed memory, all of it reserved: touching it later cannot fail. At least
/// `spare_bytes` stay free for programs that reserve nothing and crash when memory runs out (Open
/// MPI's own segments). Throws CommError with the reason if the memory is not available.
Descriptor make_segment_file(int64_t bytes, int64_t spare_bytes);

}  // namespace zea
