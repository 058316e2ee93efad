// SPDX-License-Identifier: Apache-2.0
#include "h5/stored.hpp"

#include <algorithm>

#include "h5/chunks.hpp"

namespace zea {
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
