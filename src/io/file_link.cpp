// SPDX-License-Identifier: Apache-2.0
#include "io/file_link.hpp"

#include <cerrno>

#include <sys/stat.h>
#include <unistd.h>

namespace zea {

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
