// SPDX-License-Identifier: Apache-2.0
#include "node/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "zea/core/error.hpp"

namespace zea {
namespace {

constexpr const char* kFolder = "/dev/shm";

/// A file descriptor that is closed.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

[[noreturn]] void fail(const std::string& what, int code) {
  throw CommError(what + ": " + std::strerror(code));
}

std::string unique_name() {
  std::random_device random;
  char text[64];
  std::snprintf(text, sizeof text, "/zea-%ld-%08x%08x", static_cast<long>(getpid()), random(),
                random());
  return text;
}

/// In pieces: a signal makes the kernel undo the one under way, and timers may come often.
void reserve(int file, int64_t bytes) {
  constexpr int64_t kPiece = 64 << 20;
  for (int64_t first = 0; first < bytes; first += kPiece) {
    int code = EINTR;
    while (code == EINTR) code = posix_fallocate(file, first, std::min(kPiece, bytes - first));
    if (code != 0)
      fail("reserving " + std::to_string(bytes) + " bytes of shared memory in " + kFolder, code);
  }
}

/// Looked at afterwards, so that processes that reserve at the same time see each other.
void check_spare(int file, int64_t bytes, int64_t spare_bytes) {
  struct statvfs status {};
  if (fstatvfs(file, &status) != 0 || status.f_blocks == 0) return;  // 0: no limit of its own
  const auto free = static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
  if (free < spare_bytes)
    throw CommError("after " + std::to_string(bytes) + " bytes of shared memory only " +
                    std::to_string(free) + " would be free in " + kFolder + "; " +
                    std::to_string(spare_bytes) + " are left to MPI");
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

Segment::Segment(int file, int64_t bytes) : bytes_(bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED)
    fail("mapping " + std::to_string(bytes) + " bytes of shared memory", errno);
  data_ = static_cast<std::byte*>(mapped);
  madvise(mapped, bytes, MADV_HUGEPAGE);  // a wish: kernels that do not grant it are as good
}

Segment::Segment(Segment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

SegmentName::SegmentName() : text_(unique_name()) {}

SegmentName::~SegmentName() {
  if (is_taken_) shm_unlink(text_.c_str());
  if (file_ >= 0) close(file_);
}

Segment SegmentName::create(int64_t bytes, int64_t spare_bytes) {
  check_file_size_limit(bytes);
  file_ = open(kFolder, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file_ < 0) fail("making shared memory in " + std::string(kFolder), errno);
  reserve(file_, bytes);
  check_spare(file_, bytes, spare_bytes);
  return Segment(file_, bytes);
}

void SegmentName::publish() {
  const std::string unnamed = "/proc/self/fd/" + std::to_string(file_);
  const std::string named = kFolder + text_;
  if (linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, named.c_str(), AT_SYMLINK_FOLLOW) != 0)
    fail("naming the shared memory " + text_, errno);
  is_taken_ = true;
}

Segment open_segment(const std::string& name, int64_t bytes) {
  const File file(shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (file.descriptor() < 0) fail("opening the shared memory " + name + " of a peer", errno);
  return Segment(file.descriptor(), bytes);
}

}  // namespace zea
