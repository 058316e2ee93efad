// SPDX-License-Identifier: Apache-2.0
// What the messages of an object say: dims, element type, layout of the data, links, attributes
// (IV.A.2).
#pragma once

#include <optional>

#include "h5/object.hpp"

namespace zea {

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

}  // namespace zea
