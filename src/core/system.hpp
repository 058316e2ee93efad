// SPDX-License-Identifier: Apache-2.0
// Open files, clocks and the name of this machine, as the operating system provides them.
#pragma once

#include <chrono>
#include <string>

namespace zea {

/// An open file or socket. The destructor closes it; an owner that must know whether close()
/// succeeds calls it.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  bool is_open() const { return number_ >= 0; }
  int number() const { return number_; }

 private:
  int number_;
};

/// Opens the file `path` for writing with `flags` (O_APPEND, O_TRUNC) and creates it where there is
/// none. Refuses a symbolic link of that name, since another user's directory may hold one. Throws
/// StorageError.
Descriptor open_for_writing(const std::string& path, int flags);

/// Returns the host name, as reports show it.
std::string host_name();

/// Returns seconds since 1970. The time of day may be set, and may differ between machines.
double calendar_seconds();

/// Measures seconds since its construction with a clock that nobody sets.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace zea
