// SPDX-License-Identifier: Apache-2.0
// No page of the file is written both ways: parts meet inside pages that each of them leaves to the
// kernel's buffers.
#include "files/direct_write.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "files/durable_file.hpp"

namespace zea {
namespace {

/// Bytes of one request, and of the copy that is made of memory that does not start at a page.
constexpr int64_t kRequestBytes = 4 << 20;

bool starts_at_page(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % kPageBytes == 0;
}

void write_buffered(int descriptor, const std::string& path, int64_t offset, const char* data,
                    int64_t bytes) {
  while (bytes > 0) {
    const auto request = static_cast<size_t>(std::min<int64_t>(bytes, int64_t{1} << 30));
    const ssize_t written = ::pwrite(descriptor, data, request, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_storage_error("write", path, errno, bytes);
    data += written;
    offset += written;
    bytes -= written;
  }
}

/// Writes whole pages; returns how many bytes it could. Fewer where direct access is refused after
/// all, or breaks off inside a page.
int64_t write_pages(int descriptor, const std::string& path, int64_t offset, const char* data,
                    int64_t bytes) {
  PageMemory copy;
  if (!starts_at_page(data)) copy = PageMemory(std::min(kRequestBytes, bytes));
  int64_t done = 0;
  while (done < bytes) {
    const int64_t request = std::min(kRequestBytes, bytes - done);
    const char* from = data + done;
    if (copy.data()) from = static_cast<char*>(std::memcpy(copy.data(), from, request));
    const ssize_t written = ::pwrite(descriptor, from, static_cast<size_t>(request), offset + done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL) return done;
    if (written < 0) throw_storage_error("write", path, errno, bytes - done);
    done += written;
    if (written % kPageBytes != 0) return done;
  }
  return done;
}

}  // namespace

int open_direct(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
}

void UnsyncedBytes::add(int descriptor, const std::string& path, int64_t bytes) {
  if ((bytes_ += bytes) < most_) return;
  bytes_ = 0;  // other threads write on, and count anew
  if (::fdatasync(descriptor) != 0) throw_storage_error("fdatasync", path, errno);
}

int64_t write_past_buffers(int direct, int buffered, const std::string& path, int64_t offset,
                           const void* data, int64_t bytes) {
  const char* from = static_cast<const char*>(data);
  const int64_t before = (kPageBytes - offset % kPageBytes) % kPageBytes;
  if (direct < 0 || bytes - before < kMinDirectBytes) {
    write_buffered(buffered, path, offset, from, bytes);
    return bytes;
  }
  const int64_t pages = (bytes - before) / kPageBytes * kPageBytes;
  write_buffered(buffered, path, offset, from, before);
  const int64_t end = before + write_pages(direct, path, offset + before, from + before, pages);
  write_buffered(buffered, path, offset + end, from + end, bytes - end);
  return before + bytes - end;
}

PageMemory::PageMemory(int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  ::madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a wish: it may be refused
  data_ = static_cast<char*>(memory);
}

PageMemory::PageMemory(PageMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void PageMemory::offer(int64_t begin, int64_t bytes) const {
  const auto length = static_cast<size_t>(bytes);
  if (length > 0 && ::madvise(data_ + begin, length, MADV_FREE) != 0)
    ::madvise(data_ + begin, length, MADV_DONTNEED);  // a system that cannot wait
}

PageMemory::~PageMemory() {
  if (data_) ::munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace zea
