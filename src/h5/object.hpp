// SPDX-License-Identifier: Apache-2.0
// An object of an HDF5 file as it stands there: a header of messages, of both versions (IV.A.1).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "h5/bytes.hpp"

namespace zea {

enum class H5Tag : uint64_t {
  Null = 0x00,
  Dataspace = 0x01,
  LinkInfo = 0x02,
  Datatype = 0x03,
  Link = 0x06,
  ExternalFiles = 0x07,
  Layout = 0x08,
  Filters = 0x0b,
  Attribute = 0x0c,
  Continuation = 0x10,
  SymbolTable = 0x11,
  AttributeInfo = 0x15,
};

struct H5Message {
  H5Tag tag;
  bool is_shared;  ///< its bytes say where in the file it really is
  uint64_t address;
  std::string bytes;
};

class H5Object {
 public:
  /// Reads the header at `address`.
  H5Object(const H5Bytes& file, uint64_t address);

  const std::vector<H5Message>& messages() const { return messages_; }
  /// nullptr when there is none. Refuses a second one, and one that is kept elsewhere.
  const H5Message* find(H5Tag tag, const char* what) const;
  bool has(H5Tag tag) const;
  const H5Bytes& file() const { return file_; }

 private:
  struct Chunk {
    uint64_t begin, bytes;  ///< of its messages
  };
  void read_old(uint64_t address);
  void read_new(uint64_t address);
  void add_messages(uint64_t address, std::string_view bytes);
  void add_continuation(const H5Message& message);

  const H5Bytes& file_;
  bool is_new_ = false, has_order_ = false;
  H5Parts parts_;
  std::vector<Chunk> next_;  ///< chunks still to read
  std::vector<H5Message> messages_;
};

H5Cursor cursor_of(const H5Bytes& file, const H5Message& message, const char* what);

}  // namespace zea
