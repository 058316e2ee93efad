// SPDX-License-Identifier: Apache-2.0
#include "core/system.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.hpp"

namespace zea {

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (is_open()) ::close(number_);
}

Descriptor open_for_writing(const std::string& path, int flags) {
  constexpr int kNoLink = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  Descriptor file(::open(path.c_str(), kNoLink | flags, 0666));
  if (file.is_open()) return file;
  throw StorageError("cannot write " + path + ": " +
                     (errno == ELOOP ? "it is a symbolic link; look where it leads and remove it"
                                     : std::strerror(errno)) +
                     ", or choose another directory");
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

double calendar_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace zea
