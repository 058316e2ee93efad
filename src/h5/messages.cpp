// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "h5/object.hpp"

namespace zea {
namespace {

constexpr uint64_t kMaxRank = 32;  ///< HDF5's own

/// Sign, exponent and mantissa of a floating type, in bits.
struct FloatLayout {
  uint64_t sign, offset, precision, exponent, exponent_bits, mantissa, mantissa_bits, bias;
  bool operator==(const FloatLayout&) const = default;
};

std::optional<DType> float_dtype(uint64_t bytes, const FloatLayout& found) {
  using Known = std::pair<DType, FloatLayout>;
  static const std::array<Known, 4> all{Known{DType::Float64, {63, 0, 64, 52, 11, 0, 52, 1023}},
                                        Known{DType::Float32, {31, 0, 32, 23, 8, 0, 23, 127}},
                                        Known{DType::BFloat16, {15, 0, 16, 7, 8, 0, 7, 127}},
                                        Known{DType::Float16, {15, 0, 16, 10, 5, 0, 10, 15}}};
  for (const auto& [dtype, layout] : all)
    if (found == layout && bytes == element_bytes(dtype)) return dtype;
  return std::nullopt;
}

std::optional<DType> integer_dtype(uint64_t bytes, bool is_signed) {
  if (bytes == 1 && !is_signed) return DType::UInt8;
  if (bytes == 4 && is_signed) return DType::Int32;
  if (bytes == 8 && is_signed) return DType::Int64;
  return std::nullopt;
}

H5Type parse_integer(H5Cursor& cursor, uint64_t bits, uint64_t bytes) {
  H5Type type{H5Type::Kind::Integer, bytes, {}, 0};
  const uint64_t offset = cursor.number(2), precision = cursor.number(2);
  const bool is_little = (bits & 1) == 0 || bytes == 1;
  if (is_little && offset == 0 && precision == 8 * bytes)
    type.dtype = integer_dtype(bytes, (bits & 8) != 0);
  return type;
}

H5Type parse_float(H5Cursor& cursor, uint64_t bits, uint64_t bytes) {
  constexpr uint64_t kOrder = 0x41, kNormalization = 0x30, kImplied = 0x20;
  H5Type type{H5Type::Kind::Float, bytes, {}, 0};
  FloatLayout found{};
  found.sign = bits >> 8 & 0xff;
  for (uint64_t* field : {&found.offset, &found.precision}) *field = cursor.number(2);
  for (uint64_t* field :
       {&found.exponent, &found.exponent_bits, &found.mantissa, &found.mantissa_bits})
    *field = cursor.number(1);
  found.bias = cursor.number(4);
  if ((bits & kOrder) == 0 && (bits & kNormalization) == kImplied)
    type.dtype = float_dtype(bytes, found);
  return type;
}

H5Layout parse_chunks(H5Cursor& cursor, bool is_new) {
  H5Layout layout;
  layout.kind = H5Layout::Kind::Chunked;
  const uint64_t flags = is_new ? cursor.number(1) : 0;
  const uint64_t rank = cursor.number(1);
  if (rank < 2 || rank > kMaxRank + 1) cursor.refuse("has chunks of too few or too many dims");
  if (!is_new) layout.address = cursor.address();
  const uint64_t width = is_new ? cursor.number(1) : 4;
  if (width == 0 || width > 8) cursor.refuse("has dims of more than 8 bytes");
  for (uint64_t d = 0; d < rank; ++d) layout.chunk.push_back(cursor.number(width));
  if (std::ranges::count(layout.chunk, 0u) > 0) cursor.refuse("has chunks of no elements");
  layout.index = H5Layout::Index::BTree1;
  if (!is_new) return layout;
  layout.index = H5Layout::Index{static_cast<int>(cursor.number(1))};
  constexpr uint64_t kSkipped[] = {0, 0, 0, 1, 5, 6};  // how the index is built, which it repeats
  const auto index = static_cast<size_t>(layout.index);
  if (index < 1 || index > 5) cursor.refuse("has an unknown index of chunks");
  constexpr uint64_t kSingleFiltered = 2;
  if (index == 1 && (flags & kSingleFiltered) != 0) cursor.skip(12);
  cursor.skip(kSkipped[index]);
  layout.address = cursor.address();
  return layout;
}

uint64_t padded(uint64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

}  // namespace

H5Space parse_h5_space(H5Cursor cursor) {
  const uint64_t version = cursor.number(1), rank = cursor.number(1);
  if (version < 1 || version > 2) cursor.refuse("has version " + std::to_string(version));
  const bool may_grow = (cursor.number(1) & 1) != 0;
  H5Space space;
  space.is_null = version == 2 && cursor.number(1) == 2;
  if (version == 1) cursor.skip(5);
  if (rank > kMaxRank) cursor.refuse("has more than 32 dims");
  for (uint64_t d = 0; d < rank; ++d) space.dims.push_back(cursor.number(8));
  space.max_dims = space.dims;
  for (uint64_t d = 0; may_grow && d < rank; ++d) space.max_dims[d] = cursor.number(8);
  return space;
}

H5Type parse_h5_type(H5Cursor cursor) {
  constexpr uint64_t kInteger = 0, kFloat = 1, kString = 3, kVariable = 9;
  const uint64_t type_class = cursor.number(1) & 0x0f, bits = cursor.number(3);
  const uint64_t bytes = cursor.number(4);
  if (bytes == 0) cursor.refuse("has elements of no bytes");
  if (type_class == kInteger) return parse_integer(cursor, bits, bytes);
  if (type_class == kFloat) return parse_float(cursor, bits, bytes);
  H5Type type{H5Type::Kind::Other, bytes, {}, static_cast<char>(bits & 0x0f)};
  if (type_class == kString) type.kind = H5Type::Kind::Text;
  if (type_class == kVariable && (bits & 0x0f) == 1) type.kind = H5Type::Kind::VariableText;
  return type;
}

H5Layout parse_h5_layout(H5Cursor cursor) {
  const uint64_t version = cursor.number(1), kind = cursor.number(1);
  if (version < 3 || version > 4) cursor.refuse("has version " + std::to_string(version));
  if (kind > (version == 3 ? 2 : 3)) cursor.refuse("is of an unknown class");
  if (kind == 2) return parse_chunks(cursor, version == 4);
  H5Layout layout;
  layout.kind = H5Layout::Kind{static_cast<int>(kind)};
  if (layout.kind != H5Layout::Kind::Contiguous) return layout;
  layout.address = cursor.address();
  layout.bytes = cursor.number(8);
  return layout;
}

H5Link parse_h5_link(H5Cursor cursor) {
  cursor.expect_version(1);
  const uint64_t flags = cursor.number(1);
  const uint64_t type = (flags & 0x08) != 0 ? cursor.number(1) : 0;
  if ((flags & 0x04) != 0) cursor.skip(8);  // when it was made
  if ((flags & 0x10) != 0) cursor.skip(1);  // ASCII or UTF-8
  const uint64_t length = cursor.number(size_t{1} << (flags & 3));
  H5Link link{std::string(cursor.take(length)), type == 0, kH5Undefined};
  if (link.name.empty() || link.name.find('\0') != std::string::npos)
    cursor.refuse("has no name, or one with NUL");
  if (link.is_hard) link.address = cursor.address();
  return link;
}

std::optional<H5Attribute> parse_h5_attribute(H5Cursor cursor, std::string_view name) {
  const uint64_t version = cursor.number(1), flags = cursor.number(1);
  if (version < 1 || version > 3) cursor.refuse("has version " + std::to_string(version));
  uint64_t sizes[3];
  for (uint64_t& size : sizes) size = cursor.number(2);
  if (version == 3) cursor.skip(1);  // ASCII or UTF-8
  std::string_view parts[3];
  for (size_t i = 0; i < 3; ++i) {
    parts[i] = cursor.take(sizes[i]);
    if (version == 1) cursor.skip(padded(sizes[i]) - sizes[i]);
  }
  if (parts[0].substr(0, parts[0].find('\0')) != name) return std::nullopt;
  if (version > 1 && flags != 0) cursor.refuse("has a type that is kept elsewhere in the file");
  return H5Attribute{parse_h5_type(cursor.over(parts[1])), parse_h5_space(cursor.over(parts[2])),
                     std::string(cursor.take(cursor.left()))};
}

namespace {

constexpr const char* kNotWritten = "was never written in full";

/// No filters: every element takes its bytes in the file, so a shape that outgrows the file is a
/// lie.
Shape checked_shape(const H5Bytes& file, const H5Description& described, const std::string& name) {
  uint64_t bytes = described.type.bytes;
  for (const uint64_t dim : described.space.dims)
    if (dim > uint64_t{1} << 48 || __builtin_mul_overflow(bytes, dim, &bytes) ||
        bytes > file.file_bytes())
      refuse_h5_dataset(file.site(), name, "claims more elements than the file has bytes");
  return {described.space.dims.begin(), described.space.dims.end()};
}

/// `bytes` times all of `factors`, which the file must have.
uint64_t product_in_file(const H5Bytes& file, uint64_t bytes, const Shape& factors,
                         const std::string& name) {
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(factor), &bytes) ||
        bytes > file.file_bytes())
      refuse_h5_dataset(file.site(), name, kNotWritten);
  return bytes;
}

void place_chunks(const H5Bytes& file, const H5Description& described, const std::string& name,
                  H5Stored& stored) {
  const auto& [type, space, layout] = described;
  if (layout.chunk.size() != stored.shape.size() + 1 || layout.chunk.back() != type.bytes)
    refuse_h5_dataset(file.site(), name, "has chunks of other dims or elements than its own");
  stored.chunk = Shape(layout.chunk.begin(), layout.chunk.end() - 1);
  if (num_elements(stored.shape) == 0) return;
  const Shape counts = count_h5_chunks(layout, space.dims);
  const uint64_t bytes = product_in_file(file, type.bytes, stored.chunk, name);
  product_in_file(file, bytes, counts, name);
  stored.positions = read_h5_chunks(file, layout, space, counts, bytes);
  if (std::ranges::count(stored.positions, kH5Undefined) > 0)
    refuse_h5_dataset(file.site(), name, kNotWritten);
}

}  // namespace

void refuse_h5_dataset(const H5Site& site, const std::string& name, const std::string& why) {
  throw_error(site.code, site.path + ": dataset \"" + name + "\" " + why);
}

H5Stored place_h5_dataset(const H5Bytes& file, const H5Description& described,
                          const std::string& name) {
  const auto& [type, space, layout] = described;
  if (space.is_null) refuse_h5_dataset(file.site(), name, "has no dims");
  H5Stored stored;
  stored.type = type;
  stored.shape = stored.chunk = checked_shape(file, described, name);
  stored.is_contiguous = layout.kind == H5Layout::Kind::Contiguous;
  if (!stored.is_contiguous) {
    place_chunks(file, described, name, stored);
    return stored;
  }
  const uint64_t bytes = static_cast<uint64_t>(num_elements(stored.shape)) * type.bytes;
  if (bytes == 0) return stored;
  if (layout.address == kH5Undefined || layout.bytes < bytes)
    refuse_h5_dataset(file.site(), name, kNotWritten);
  stored.positions = {file.position(layout.address, bytes, "data of a dataset")};
  return stored;
}

}  // namespace zea
