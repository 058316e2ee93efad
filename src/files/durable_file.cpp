// SPDX-License-Identifier: Apache-2.0
#include "files/durable_file.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include "core/error.hpp"
#include "core/system.hpp"
#include "files/direct_write.hpp"

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

/// All of the text, after what is written already.
void write_rest(const std::string& path, int flags, const std::string& text) {
  const Descriptor file = open_for_writing(path, flags);
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = ::write(file.number(), text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0)
      throw_storage_error("write", path, put < 0 ? errno : EIO,
                          static_cast<int64_t>(text.size() - done));
    done += static_cast<size_t>(put);
  }
}

std::string size_limit() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return "the file system holds no file of that size; choose another directory";
  return "the limit on a file's size is " + std::to_string(limit.rlim_cur) +
         " bytes (ulimit -f, in KiB); raise it: ulimit -f unlimited";
}

std::string full_disk(const std::string& path, int64_t needed_bytes) {
  struct statvfs status {};
  const bool is_known = ::statvfs(path.c_str(), &status) == 0 ||
                        ::statvfs(parent_directory(path).c_str(), &status) == 0;
  if (is_known && status.f_files > 0 && status.f_favail == 0)
    return "the file system has no room for another file (inodes); remove some, or choose another "
           "directory";
  const int64_t free = free_bytes(path);
  std::string needed =
      needed_bytes > 0 ? "needed " + std::to_string(needed_bytes) + " bytes, " : "";
  if (free > needed_bytes && needed_bytes > 0)
    return "the disk or a project's quota is full: " + needed + "and the file system has " +
           std::to_string(free) + " free; make room or choose another directory";
  return "the disk is full: " + needed + "free " + std::to_string(free) +
         "; make room or choose another directory";
}

}  // namespace

std::string describe_storage_error(int error_number, const std::string& path,
                                   int64_t needed_bytes) {
  std::string name = std::strerror(error_number);
  switch (error_number) {
    case ENOSPC:
      return name + "; " + full_disk(path, needed_bytes);
    case EDQUOT:
      return name +
             "; your quota there (of the user, the group or the project) is used up, however "
             "much the disk has free; remove files, choose another directory, or ask for a larger "
             "quota";
    case EFBIG:
      return name + "; " + size_limit();
    case EROFS:
      return name + "; choose another directory";
    case EACCES:
    case EPERM:
      return name + "; you may not write there: choose another directory";
    case EMFILE:
      return name + "; raise the limit on open files: ulimit -n";
    default:
      return name;
  }
}

void throw_storage_error(const std::string& call, const std::string& path, int error_number,
                         int64_t needed_bytes) {
  throw StorageError(path + ": " + call +
                     " failed: " + describe_storage_error(error_number, path, needed_bytes));
}

void append_text(const std::string& path, const std::string& text) {
  write_rest(path, O_APPEND, text);
}

void remove_half_line(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  off_t end = status.st_size;
  for (char last = 0; end > 0; --end)
    if (::pread(file.number(), &last, 1, end - 1) != 1 || last == '\n') break;
  if (end < status.st_size && ::ftruncate(file.number(), end) != 0)
    throw_storage_error("ftruncate", path, errno);
}

void replace_text(const std::string& path, const std::string& text) {
  write_rest(path, O_TRUNC, text);
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

const char* read_at(int descriptor, int64_t offset, char* target, int64_t bytes,
                    const char* at_end) {
  while (bytes > 0) {
    const auto request = static_cast<size_t>(std::min<int64_t>(bytes, int64_t{1} << 30));
    const ssize_t got = ::pread(descriptor, target, request, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::strerror(errno);
    if (got == 0) return at_end;
    target += got;
    offset += got;
    bytes -= got;
  }
  return nullptr;
}

std::optional<FileIdentity> identity_of(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return FileIdentity{status.st_dev, status.st_ino, status.st_size,
                      status.st_mtim.tv_sec * int64_t{1000000000} + status.st_mtim.tv_nsec};
}

/// Looked at under its new name, which nobody else knows: nothing can take its place in between.
int link_file(const std::string& from, const std::string& to, const FileIdentity& wanted) {
  if (::link(from.c_str(), to.c_str()) != 0) return errno;
  if (identity_of(to) == wanted) return 0;
  return ::unlink(to.c_str()) == 0 ? ESTALE : errno;
}

}  // namespace zea
