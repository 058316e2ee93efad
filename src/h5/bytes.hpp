// SPDX-License-Identifier: Apache-2.0
// The bytes of an HDF5 file that somebody else may have made, read without HDF5: nothing outside
// the file is touched, nothing is believed before it is checked, and what is wrong is refused with
// its place. Sections named in the readers (IV.A ...) are those of the HDF5 File Format
// Specification, version 3.0.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace zea {

/// The file that a message names, and the kind of its error.
struct H5Site {
  std::string path;
  ExitCode code;
};

constexpr uint64_t kH5Undefined = ~uint64_t{0};  ///< an address of nothing
constexpr uint64_t kH5Address = 8, kH5Sum = 4;   ///< bytes of an address, and of a checksum

class H5Bytes {
 public:
  H5Bytes(int descriptor, int64_t file_bytes, H5Site site)
      : site_(std::move(site)),
        descriptor_(descriptor),
        file_bytes_(static_cast<uint64_t>(file_bytes)) {}

  const H5Site& site() const { return site_; }
  int descriptor() const { return descriptor_; }
  uint64_t file_bytes() const { return file_bytes_; }
  /// Addresses count from here on.
  void set_base(uint64_t base) { base_ = base; }

  /// The place in the file of `count` bytes that are all in it.
  uint64_t position(uint64_t address, uint64_t count, const char* what) const;
  std::string at(uint64_t address, uint64_t count, const char* what) const;
  /// The same of a structure whose last 4 bytes are its checksum; without them.
  std::string checked(uint64_t address, uint64_t count, const char* what) const;

  [[noreturn]] void refuse(const char* what, uint64_t address, const std::string& why) const;

 private:
  H5Site site_;
  int descriptor_;
  uint64_t file_bytes_, base_ = 0;
  mutable std::string window_;  ///< what lies around the last structure, which the next often does
  mutable uint64_t window_begin_ = 0;
};

/// Bob Jenkins' lookup3, which is behind metadata of the newer formats.
uint32_t h5_checksum(std::string_view bytes);

/// Takes numbers off the front of a structure.
class H5Cursor {
 public:
  /// `bytes` must outlive it.
  H5Cursor(const H5Bytes& file, const char* what, uint64_t address, std::string_view bytes)
      : file_(file), what_(what), address_(address), bytes_(bytes) {}

  /// Another over a part of the same structure.
  H5Cursor over(std::string_view part) const { return {file_, what_, address_, part}; }
  std::string_view take(uint64_t count);
  void skip(uint64_t count) { take(count); }
  /// Takes a number of up to 8 bytes, the lowest first.
  uint64_t number(size_t bytes);
  uint64_t address() { return number(8); }
  /// Refuses anything else.
  void expect(std::string_view signature);
  void expect_version(uint64_t version);
  void expect(uint64_t value, size_t bytes, const char* name);
  uint64_t left() const { return bytes_.size(); }
  [[noreturn]] void refuse(const std::string& why) const { file_.refuse(what_, address_, why); }

 private:
  const H5Bytes& file_;
  const char* what_;
  uint64_t address_;
  std::string_view bytes_;
};

/// Parts that one structure was seen to have: a part that comes again, or overlaps another, is
/// refused, so that walks end and copies are no larger than the file.
class H5Parts {
 public:
  void add(const H5Bytes& file, const char* what, uint64_t address, uint64_t count);

 private:
  std::map<uint64_t, uint64_t> ends_;  ///< by first byte
};

/// Bytes that numbers up to `limit` need.
size_t h5_width(uint64_t limit);

}  // namespace zea
