// SPDX-License-Identifier: Apache-2.0
// The program's own malloc() and open() replace the C library's, also for its shared libraries.
// Under a sanitizer, which has a malloc() of its own, that counts.
#include "watch.hpp"

#include <malloc.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <utility>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define ZEA_SANITIZED
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define ZEA_SANITIZED
#endif

namespace zea::fuzz {
namespace {

std::atomic<int64_t> held = 0, peak = 0;
thread_local bool watches_files = false;
thread_local double started = 0;

std::vector<std::string>& opened() {
  static thread_local std::vector<std::string> paths;
  return paths;
}

void count(int64_t bytes) {
  const int64_t now = held.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t known = peak.load(std::memory_order_relaxed);
  while (now > known && !peak.compare_exchange_weak(known, now, std::memory_order_relaxed)) {
  }
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int open_path(int directory, const char* path, int flags, int mode) {
  if (watches_files) {
    watches_files = false;
    opened().emplace_back(path);
    watches_files = true;
  }
  return static_cast<int>(syscall(SYS_openat, directory, path, flags, mode));
}

}  // namespace

#ifdef ZEA_SANITIZED
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*,
                                                                           size_t),
                                                         void (*on_free)(const volatile void*));
extern "C" size_t __sanitizer_get_allocated_size(const volatile void* block);

static const int hooks = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t bytes) { count(static_cast<int64_t>(bytes)); },
    [](const volatile void* block) {
      if (block != nullptr) count(-static_cast<int64_t>(__sanitizer_get_allocated_size(block)));
    });
#endif

void start_watching() {
  held = 0;
  peak = 0;
  opened().clear();
  started = processor_seconds();
  watches_files = true;
}

Seen stop_watching() {
  watches_files = false;
  return {peak.load(), processor_seconds() - started, std::move(opened())};
}

}  // namespace zea::fuzz

extern "C" {

constexpr int kHere = -100;  // AT_FDCWD, whose header declares open() in another way

#define ZEA_MODE(flags, mode)                                                   \
  va_list list;                                                                 \
  va_start(list, flags);                                                        \
  const int mode = va_arg(list, int); /* without O_CREAT it is not looked at */ \
  va_end(list)

int open(const char* path, int flags, ...) {
  ZEA_MODE(flags, mode);
  return zea::fuzz::open_path(kHere, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  ZEA_MODE(flags, mode);
  return zea::fuzz::open_path(kHere, path, flags, mode);
}
int openat(int directory, const char* path, int flags, ...) {
  ZEA_MODE(flags, mode);
  return zea::fuzz::open_path(directory, path, flags, mode);
}
int openat64(int directory, const char* path, int flags, ...) {
  ZEA_MODE(flags, mode);
  return zea::fuzz::open_path(directory, path, flags, mode);
}
int __open_2(const char* path, int flags) {
  return zea::fuzz::open_path(kHere, path, flags, 0);
}
int __open64_2(const char* path, int flags) {
  return zea::fuzz::open_path(kHere, path, flags, 0);
}

#ifndef ZEA_SANITIZED
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

static void* counted(void* block) {
  if (block != nullptr) zea::fuzz::count(static_cast<int64_t>(malloc_usable_size(block)));
  return block;
}
static void forget(void* block) {
  if (block != nullptr) zea::fuzz::count(-static_cast<int64_t>(malloc_usable_size(block)));
}

void* malloc(size_t bytes) {
  return counted(__libc_malloc(bytes));
}
void* calloc(size_t number, size_t bytes) {
  return counted(__libc_calloc(number, bytes));
}
void* realloc(void* block, size_t bytes) {
  forget(block);
  void* moved = __libc_realloc(block, bytes);
  if (moved == nullptr && bytes > 0) counted(block);
  return counted(moved);
}
void* memalign(size_t alignment, size_t bytes) {
  return counted(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return counted(__libc_memalign(alignment, bytes));
}
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  *block = counted(__libc_memalign(alignment, bytes));
  return *block == nullptr ? ENOMEM : 0;
}
void free(void* block) {
  forget(block);
  __libc_free(block);
}
#endif
}
