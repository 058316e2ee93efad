// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace zea {

/// An open file or socket, closed at the end; where close() itself can fail, its owner calls it.
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

/// Opens the file `path` for writing, with `flags` (O_APPEND, O_TRUNC), and makes it where there is
/// none. A symbolic link of that name, which a directory of somebody else's may hold, is refused.
/// Throws StorageError.
Descriptor open_for_writing(const std::string& path, int flags);

}  // namespace zea
