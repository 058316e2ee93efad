// SPDX-License-Identifier: Apache-2.0
#include "comm/node/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.hpp"

namespace zea {
namespace {

constexpr const char* kFolder = "/dev/shm";

/// Throws where `bytes`, of which `reserved` are taken already, do not leave `spare_bytes` free.
void check_room(int file, int64_t bytes, int64_t reserved, int64_t spare_bytes) {
  struct statvfs status {};
  if (fstatvfs(file, &status) != 0 || status.f_blocks == 0) return;  // 0: no limit of its own
  const int64_t free =
      static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize) + reserved;
  if (free < bytes + spare_bytes)
    throw CommError(std::to_string(free) + " bytes are free in " + kFolder + ", and " +
                    std::to_string(bytes) + " are wanted beside " + std::to_string(spare_bytes) +
                    " that are left to MPI; remove what earlier jobs left there, or make it " +
                    "larger (containers: --shm-size)");
}

/// In pieces: a signal makes the kernel undo the one under way, and timers may come often. Before
/// each it is looked whether the rest fits, so that processes that reserve at the same time see
/// each other while there still is what others die without.
void reserve(int file, int64_t bytes, int64_t spare_bytes) {
  constexpr int64_t kPiece = 2 << 20;
  for (int64_t first = 0; first < bytes; first += kPiece) {
    check_room(file, bytes, first, spare_bytes);
    int code = EINTR;
    while (code == EINTR) code = posix_fallocate(file, first, std::min(kPiece, bytes - first));
    if (code != 0)
      throw_system_error(
          "reserving " + std::to_string(bytes) + " bytes of shared memory in " + kFolder, code);
  }
  check_room(file, bytes, bytes, spare_bytes);
}

/// Beyond this limit the kernel would not only refuse but send SIGXFSZ.
void check_file_size_limit(int64_t bytes) {
  rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (limit.rlim_cur < static_cast<rlim_t>(bytes))
    throw CommError(std::to_string(bytes) + " bytes of shared memory are more than the limit of " +
                    std::to_string(limit.rlim_cur) + " bytes on the size of files (ulimit -f)");
}

}  // namespace

void throw_system_error(const std::string& what, int code) {
  throw CommError(what + ": " + std::strerror(code));
}

SharedSegment::SharedSegment(int file, int64_t bytes) : bytes_(bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED)
    throw_system_error("mapping " + std::to_string(bytes) + " bytes of shared memory", errno);
  data_ = static_cast<std::byte*>(mapped);
  madvise(mapped, bytes, MADV_HUGEPAGE);  // a wish: kernels that do not grant it are as good
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedSegment::~SharedSegment() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Descriptor make_segment_file(int64_t bytes, int64_t spare_bytes) {
  check_file_size_limit(bytes);
  Descriptor file(open(kFolder, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file.is_open()) throw_system_error("making shared memory in " + std::string(kFolder), errno);
  reserve(file.number(), bytes, spare_bytes);
  return file;
}

}  // namespace zea
