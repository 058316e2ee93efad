// SPDX-License-Identifier: Apache-2.0
// A library to preload into a program: writes and syncs of files below a folder fail or take long,
// and the clock jumps. A test (check_soak.py) controls these faults through a page of shared memory
// while the program runs.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

/// The page, as check_soak.py packs it.
struct Faults {
  int64_t error;          ///< errno of writes and syncs; 0: they succeed
  int64_t delay_ms;       ///< of each
  int64_t clock_seconds;  ///< added to the time of day
};

const volatile Faults* open_faults() {
  const char* path = std::getenv("ZEA_FAULTS");
  const int file =
      path == nullptr ? -1 : static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, O_RDONLY, 0));
  if (file < 0) return nullptr;
  void* page = ::mmap(nullptr, sizeof(Faults), PROT_READ, MAP_SHARED, file, 0);
  ::close(file);
  return page == MAP_FAILED ? nullptr : static_cast<const Faults*>(page);
}

const volatile Faults* faults() {
  static const volatile Faults* const page = open_faults();
  return page;
}

bool is_below_folder(int descriptor) {
  static const char* const folder = std::getenv("ZEA_FAULTS_BELOW");
  if (folder == nullptr) return false;
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = ::readlink(link, path, sizeof path - 1);
  if (length < 0) return false;
  path[length] = '\0';
  return std::strncmp(path, folder, std::strlen(folder)) == 0;
}

/// Returns whether the call fails; then errno says why.
bool fails(int descriptor) {
  const volatile Faults* page = faults();
  if (page == nullptr || (page->error == 0 && page->delay_ms == 0) || !is_below_folder(descriptor))
    return false;
  ::usleep(static_cast<useconds_t>(page->delay_ms * 1000));
  errno = static_cast<int>(page->error);
  return page->error != 0;
}

}  // namespace

extern "C" {

ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  return fails(descriptor) ? -1 : ::syscall(SYS_pwrite64, descriptor, data, bytes, offset);
}
ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off64_t offset) {
  return pwrite(descriptor, data, bytes, offset);
}
int fsync(int descriptor) {
  return fails(descriptor) ? -1 : static_cast<int>(::syscall(SYS_fsync, descriptor));
}
int fdatasync(int descriptor) {
  return fails(descriptor) ? -1 : static_cast<int>(::syscall(SYS_fdatasync, descriptor));
}
int clock_gettime(clockid_t clock, timespec* time) {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  const volatile Faults* page = faults();
  if (result == 0 && clock == CLOCK_REALTIME && page != nullptr)
    time->tv_sec += page->clock_seconds;
  return result;
}

}  // extern "C"
