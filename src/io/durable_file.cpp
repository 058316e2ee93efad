// SPDX-License-Identifier: Apache-2.0
#include "zea/io/durable_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "direct_write.hpp"
#include "read_at.hpp"
#include "zea/core/descriptor.hpp"
#include "zea/core/error.hpp"

namespace zea {
namespace {

void sync_path(const std::string& path, int flags) {
  const Descriptor file(::open(path.c_str(), flags | O_CLOEXEC));
  if (!file.is_open()) throw_storage_error("open", path, errno);
  // Some file systems cannot sync directories and say EINVAL: nothing more can be done there.
  if (::fsync(file.number()) != 0 && !(errno == EINVAL && (flags & O_DIRECTORY)))
    throw_storage_error("fsync", path, errno);
}

std::string read_fully(int descriptor, const std::string& path, int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  if (const char* fault = read_at(descriptor, 0, text.data(), bytes, std::strerror(EIO)))
    throw WeightsError(path + ": cannot read: " + fault);
  return text;
}

}  // namespace

void throw_storage_error(const std::string& call, const std::string& path, int error_number,
                         int64_t needed_bytes) {
  std::string message = path + ": " + call + " failed: " + std::strerror(error_number);
  if (error_number == ENOSPC || error_number == EDQUOT) {
    message += " (needed " + std::to_string(needed_bytes) + " bytes, free " +
               std::to_string(free_bytes(path)) + "); make room or choose another directory";
  }
  throw StorageError(message);
}

void sync_file(const std::string& path) {
  sync_path(path, O_RDONLY);
}

void sync_directory(const std::string& path) {
  sync_path(path, O_RDONLY | O_DIRECTORY);
}

void rename_durably(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    throw_storage_error("rename to " + to, from, errno);
  sync_directory(parent_directory(to));
}

void write_text_durably(const std::string& path, const std::string& text) {
  DurableFile file(path);
  file.write(0, text.data(), static_cast<int64_t>(text.size()));
  file.finish();
}

std::string read_text(const std::string& path, int64_t max_bytes) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.is_open()) {
    const char* reason = errno == ELOOP ? "it is a symbolic link" : std::strerror(errno);
    throw WeightsError(path + ": cannot open: " + reason);
  }
  struct stat status {};
  if (::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode))
    throw WeightsError(path + ": not a regular file");
  if (status.st_size > max_bytes)
    throw WeightsError(path + ": has " + std::to_string(status.st_size) + " bytes; at most " +
                       std::to_string(max_bytes) + " are allowed here");
  return read_fully(file.number(), path, status.st_size);
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_storage_error("unlink", path, errno);
}

std::string parent_directory(const std::string& path) {
  size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  end = path.rfind('/', end);
  if (end == std::string::npos) return ".";
  return end == 0 ? "/" : path.substr(0, end);
}

int64_t free_bytes(const std::string& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0 &&
      ::statvfs(parent_directory(path).c_str(), &status) != 0)
    return -1;
  return static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
}

void check_free_bytes(const std::string& path, int64_t needed_bytes) {
  const int64_t free = free_bytes(path);
  if (free >= 0 && free < needed_bytes)
    throw StorageError(path + ": needs " + std::to_string(needed_bytes) + " bytes, free are " +
                       std::to_string(free) + "; make room or choose another place");
}

DurableFile::DurableFile(const std::string& path) : path_(path), temporary_(path + ".tmp") {
  remove_file(temporary_);
  descriptor_ =
      ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor_ < 0) throw_storage_error("create", temporary_, errno);
  direct_ = open_direct(temporary_);
}

DurableFile::~DurableFile() {
  if (direct_ >= 0) ::close(direct_);
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void DurableFile::write(int64_t offset, const void* data, int64_t bytes) {
  ZEA_ASSERT(descriptor_ >= 0);
  write_past_buffers(direct_, descriptor_, temporary_, offset, data, bytes);
}

void DurableFile::finish() {
  ZEA_ASSERT(descriptor_ >= 0);
  if (::fsync(descriptor_) != 0) throw_storage_error("fsync", temporary_, errno);
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0) {
    const int error_number = errno;
    ::unlink(temporary_.c_str());
    throw_storage_error("close", temporary_, error_number);
  }
  rename_durably(temporary_, path_);
}

}  // namespace zea
