// SPDX-License-Identifier: Apache-2.0
// Writing large parts of a file past the kernel's buffers: they go to the disk while the next part
// is read, and push nothing else out of memory.
#pragma once

#include <cstdint>
#include <string>

namespace zea {

/// Below this the kernel's buffers, which join writes, are better.
inline constexpr int64_t kMinDirectBytes = 1 << 20;

/// A second descriptor of a file that is being written, for direct access; -1 where the file system
/// has none.
int open_direct(const std::string& path);

/// Writes all bytes at `offset`, whole pages of the file by `direct` (unless it is -1), what
/// remains at both ends by `buffered`. Threads may write different parts. Throws StorageError.
void write_past_buffers(int direct, int buffered, const std::string& path, int64_t offset,
                        const void* data, int64_t bytes);

}  // namespace zea
