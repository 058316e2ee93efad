// SPDX-License-Identifier: Apache-2.0
// An object of an HDF5 file as it stands there: a header of messages, of both versions (IV.A.1).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/extent.hpp"
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

// The contents of an object's messages: dims, element type, layout of the data, links, attributes
// (IV.A.2).

struct H5Space {
  bool is_null = false;  ///< of no elements, and no dims
  std::vector<uint64_t> dims, max_dims;
};

struct H5Type {
  enum class Kind { Integer, Float, Text, VariableText, Other };
  Kind kind = Kind::Other;
  uint64_t bytes = 0;
  std::optional<DType> dtype;  ///< where it is one of ours
  char padding = 0;            ///< of text: 0 ends with NUL, 1 is filled up with NUL, 2 with spaces

  bool is_text() const { return kind == Kind::Text || kind == Kind::VariableText; }
};

struct H5Layout {
  enum class Kind { Compact, Contiguous, Chunked, Virtual };
  enum class Index { None, Single, Implicit, FixedArray, ExtensibleArray, BTree2, BTree1 };
  Kind kind = Kind::Compact;
  Index index = Index::None;
  uint64_t address = kH5Undefined;  ///< of the data, or of the index of chunks
  uint64_t bytes = 0;               ///< of contiguous data
  std::vector<uint64_t> chunk;      ///< its dims, the last in bytes of an element
};

struct H5Link {
  std::string name;
  bool is_hard;
  uint64_t address;  ///< of the object, where it is hard
};

struct H5Attribute {
  H5Type type;
  H5Space space;
  std::string value;
};

H5Space parse_h5_space(H5Cursor cursor);
H5Type parse_h5_type(H5Cursor cursor);
H5Layout parse_h5_layout(H5Cursor cursor);
H5Link parse_h5_link(H5Cursor cursor);
/// nullopt where it has another name.
std::optional<H5Attribute> parse_h5_attribute(H5Cursor cursor, std::string_view name);

// Links of a group and attributes of an object: messages of its header while they are few, in a
// fractal heap when they are many (IV.A.2.c, g, m, v); links of an old group in a table of symbols
// (III.A.1, III.B).

bool is_h5_group(const H5Object& object);

std::map<std::string, H5Link> read_h5_links(const H5Object& group);

std::optional<H5Attribute> find_h5_attribute(const H5Object& object, const std::string& name);

// A dataset as it lies in a file: wholly written, unfiltered, nothing of it elsewhere.

struct H5Stored {
  H5Type type;
  Shape shape;
  bool is_contiguous = true;
  Shape chunk;                      ///< dims of a chunk; of the whole where it is contiguous
  std::vector<uint64_t> positions;  ///< in the file, of each chunk, row-major; none: no elements
};

/// A dataset's messages about its data.
struct H5Description {
  const H5Type& type;
  const H5Space& space;
  const H5Layout& layout;  ///< contiguous or chunked
};

[[noreturn]] void refuse_h5_dataset(const H5Site& site, const std::string& name,
                                    const std::string& why);

/// Refuses data that the file does not hold.
H5Stored place_h5_dataset(const H5Bytes& file, const H5Description& described,
                          const std::string& name);

// Where the chunks of a dataset lie, by each kind of index (III.A, VII).

/// How many chunks of `layout` there are along each of `dims`.
Shape count_h5_chunks(const H5Layout& layout, const std::vector<uint64_t>& dims);

/// The position in the file of each chunk of `bytes`, row-major in `counts` chunks; kH5Undefined of
/// one that was never written. Refuses an index that is not sound.
std::vector<uint64_t> read_h5_chunks(const H5Bytes& file, const H5Layout& layout,
                                     const H5Space& space, const Shape& counts, uint64_t bytes);

}  // namespace zea
