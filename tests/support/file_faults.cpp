// SPDX-License-Identifier: Apache-2.0
#include "support/file_faults.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace zea::testing {
namespace {

std::mutex mutex;
bool is_armed = false;
FileFault fault;
std::vector<std::string> seen;
std::vector<std::string> losses;
std::set<std::string> unsynced_files;                         ///< with bytes that a power cut loses
std::map<std::string, std::set<std::string>> unsynced_names;  ///< entries by directory

std::string path_of(int descriptor) {
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t length = ::readlink(link.c_str(), path, sizeof path - 1);
  return length > 0 ? path : "";
}

std::string path_at(int directory, const char* path) {
  if (*path == '/' || directory == AT_FDCWD) return path;
  return path_of(directory) + "/" + path;
}

std::string parent_of(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

bool is_below(const std::string& path) {
  return is_armed && path.starts_with(fault.directory + "/");
}

/// Whether the call that is about to be made on `path` is to fail; errno is set then. Not to return
/// is one of the faults.
bool fails(const std::string& call, const std::string& path) {
  const std::lock_guard lock(mutex);
  if (!is_below(path)) return false;
  seen.push_back(call + " " + path);
  if (static_cast<int>(seen.size()) != fault.at) return false;
  if (fault.kind == FaultKind::Kill) ::raise(SIGKILL);
  if (fault.kind != FaultKind::Error) return false;
  errno = fault.error_number;
  return true;
}

void wait_if_slow(const std::string& path) {
  {
    const std::lock_guard lock(mutex);
    if (!is_below(path) || fault.kind != FaultKind::Slow) return;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

void note_bytes(const std::string& path) {
  const std::lock_guard lock(mutex);
  if (is_below(path)) unsynced_files.insert(path);
}

void note_name(const std::string& path) {
  const std::lock_guard lock(mutex);
  if (is_below(path)) unsynced_names[parent_of(path)].insert(path);
}

void forget(const std::string& path) {
  const std::lock_guard lock(mutex);
  unsynced_files.erase(path);
  unsynced_names[parent_of(path)].erase(path);
}

void note_sync(const std::string& path) {
  const std::lock_guard lock(mutex);
  unsynced_files.erase(path);
  unsynced_names.erase(path);
}

void note_link(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex);
  if (!is_below(to)) return;
  unsynced_names[parent_of(to)].insert(to);
  if (unsynced_files.contains(from)) unsynced_files.insert(to);
}

/// A rename must not replace a file by one that a power cut would lose.
void note_rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex);
  if (!is_below(to)) return;
  const auto lost = [&](const std::string& path) {
    return path == from || path.starts_with(from + "/");
  };
  const bool is_final = !to.ends_with(".tmp");
  for (const std::string& file : unsynced_files)
    if (is_final && lost(file)) losses.push_back(to + ": the bytes of " + file);
  for (const auto& [directory, names] : unsynced_names)
    for (const std::string& name : names)
      if (is_final && lost(directory)) losses.push_back(to + ": the name of " + name);
  unsynced_names[parent_of(from)].erase(from);
  unsynced_names[parent_of(to)].insert(to);
}

}  // namespace

void arm(const FileFault& wanted) {
  const std::lock_guard lock(mutex);
  fault = wanted;
  seen.clear();
  losses.clear();
  unsynced_files.clear();
  unsynced_names.clear();
  is_armed = true;
}

void disarm() {
  const std::lock_guard lock(mutex);
  is_armed = false;
  for (const std::string& file : unsynced_files) losses.push_back("left: the bytes of " + file);
  for (const auto& [directory, names] : unsynced_names)
    for (const std::string& name : names) losses.push_back("left: the name of " + name);
}

int num_calls() {
  const std::lock_guard lock(mutex);
  return static_cast<int>(seen.size());
}

std::vector<std::string> calls() {
  const std::lock_guard lock(mutex);
  return seen;
}

std::vector<std::string> power_cut_losses() {
  const std::lock_guard lock(mutex);
  return losses;
}

}  // namespace zea::testing

// libc's names, for this program and the libraries that it loads.
namespace faults = zea::testing;

namespace {

int open_file(const char* path, int flags, mode_t mode) {
  const std::string name = faults::path_at(AT_FDCWD, path);
  const bool makes = (flags & O_CREAT) != 0;
  if (makes && faults::fails("open", name)) return -1;
  const auto descriptor =
      static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, static_cast<int>(mode)));
  if (descriptor >= 0 && makes) faults::note_name(name);
  return descriptor;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

ssize_t write_file(int descriptor, const void* data, size_t bytes, off_t offset) {
  const std::string path = faults::path_of(descriptor);
  if (faults::fails("pwrite", path)) return -1;
  const ssize_t written = ::syscall(SYS_pwrite64, descriptor, data, bytes, offset);
  if (written > 0) faults::note_bytes(path);
  return written;
}

int rename_file(const char* from, const char* to) {
  if (faults::fails("rename", to)) return -1;
  const auto result = static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
  if (result == 0) faults::note_rename(from, to);
  return result;
}

int remove_at(int directory, const char* path, int flags) {
  const std::string name = faults::path_at(directory, path);
  if (faults::fails("unlink", name)) return -1;
  faults::wait_if_slow(name);
  const auto result = static_cast<int>(::syscall(SYS_unlinkat, directory, path, flags));
  if (result == 0) faults::forget(name);
  return result;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_file(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_file(path, flags, mode);
}

ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  return write_file(descriptor, data, bytes, offset);
}

ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off64_t offset) {
  return write_file(descriptor, data, bytes, offset);
}

int ftruncate(int descriptor, off_t bytes) {
  const std::string path = faults::path_of(descriptor);
  if (faults::fails("ftruncate", path)) return -1;
  const auto result = static_cast<int>(::syscall(SYS_ftruncate, descriptor, bytes));
  if (result == 0) faults::note_bytes(path);
  return result;
}

int fsync(int descriptor) {
  const std::string path = faults::path_of(descriptor);
  if (faults::fails("fsync", path)) return -1;
  const auto result = static_cast<int>(::syscall(SYS_fsync, descriptor));
  if (result == 0) faults::note_sync(path);
  return result;
}

int rename(const char* from, const char* to) noexcept {
  return rename_file(from, to);
}

int link(const char* from, const char* to) noexcept {
  if (faults::fails("link", to)) return -1;
  const auto result = static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
  if (result == 0) faults::note_link(from, to);
  return result;
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (faults::fails("mkdir", path)) return -1;
  const auto result = static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (result == 0) faults::note_name(path);
  return result;
}

int unlink(const char* path) noexcept {
  return remove_at(AT_FDCWD, path, 0);
}

int rmdir(const char* path) noexcept {
  return remove_at(AT_FDCWD, path, AT_REMOVEDIR);
}

int unlinkat(int directory, const char* path, int flags) noexcept {
  return remove_at(directory, path, flags);
}

}  // extern "C"
