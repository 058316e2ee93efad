// SPDX-License-Identifier: Apache-2.0
#include "files/page_memory.hpp"

#include <new>
#include <utility>

#include <sys/mman.h>

namespace zea {

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
