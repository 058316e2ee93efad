// SPDX-License-Identifier: Apache-2.0
// Reading: a dataset is opened by hard links only, and its layout, filters, storage, dims and type
// are checked before any element is read.
#include <type_traits>

#include <fcntl.h>

#include "h5_layout.hpp"
#include "h5_state.hpp"
#include "read_at.hpp"
#include "zea/io/h5.hpp"

namespace zea {
namespace {

[[noreturn]] void refuse(const H5Site& site, const std::string& name, const std::string& why) {
  throw_error(site.code, site.path + ": dataset \"" + name + "\" " + why);
}

/// Refuses layouts that reach into other files, filters that inflate, and data that was never
/// written.
void check_layout(hid_t dataset, const H5Site& site, const std::string& name) {
  const H5Handle creation(H5Dget_create_plist(dataset), H5Pclose, site,
                          "H5Dget_create_plist failed");
  const H5D_layout_t layout = H5Pget_layout(*creation);
  if (layout == H5D_VIRTUAL) refuse(site, name, "is virtual: its data lies in other files");
  if (layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED)
    refuse(site, name, "is neither contiguous nor chunked");
  if (layout == H5D_CONTIGUOUS && H5Pget_external_count(*creation) != 0)
    refuse(site, name, "keeps its data in external files");
  if (H5Pget_nfilters(*creation) != 0)
    refuse(site, name, "has filters (compression, checksum); rewrite it without");
}

H5Handle memory_space(int64_t elements, const H5Site& site) {
  return make_h5_space({elements}, site);
}

void check_box(const H5Dataset& dataset, const Extent& extent, const H5Site& site) {
  if (extent.offset.size() == dataset.info.shape.size() &&
      intersect(extent, whole(dataset.info.shape)) == extent)
    return;
  refuse(site, dataset.info.name, "is asked for elements outside its shape");
}

/// Reads of this size come in rows of their like.
constexpr int64_t kLargeReadBytes = 1 << 20;
/// Fetched while what was read before is hashed.
constexpr int64_t kReadAheadBytes = 32 << 20;

void read_data(int descriptor, const H5Site& site, const std::string& name, int64_t offset,
               char* target, int64_t bytes) {
  if (bytes >= kLargeReadBytes)
    ::posix_fadvise(descriptor, offset, bytes + kReadAheadBytes, POSIX_FADV_WILLNEED);
  if (const char* fault = read_at(descriptor, offset, target, bytes, "the file ends before it"))
    refuse(site, name, std::string("cannot be read: ") + fault);
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>) return DType::Float64;
  if constexpr (std::is_same_v<T, float>) return DType::Float32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::Int64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::Int32;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::UInt8;
}

}  // namespace

H5Handle open_h5_dataset(const H5File::State& state, const std::string& name) {
  if (!state.has_hard_link(name))
    throw_error(state.site.code, state.site.path + ": has no dataset \"" + name + "\"");
  constexpr const char* kIsVirtual = "is virtual: its data lies in other files";
  if (is_virtual_dataset(state, name)) refuse(state.site, name, kIsVirtual);
  H5Handle dataset(H5Dopen2(*state.file, name.c_str(), H5P_DEFAULT), H5Dclose, state.site,
                   "cannot open dataset \"" + name + "\"");
  check_layout(*dataset, state.site, name);
  return dataset;
}

Shape checked_h5_shape(hid_t dataset, int64_t element_bytes, const H5File::State& state,
                       const std::string& name) {
  const H5Site& site = state.site;
  const H5Handle space(H5Dget_space(dataset), H5Sclose, site, "H5Dget_space failed");
  const H5S_class_t space_class = H5Sget_simple_extent_type(*space);
  if (space_class == H5S_SCALAR) return {};
  if (space_class != H5S_SIMPLE) refuse(site, name, "has no dims");
  std::vector<hsize_t> dims(H5S_MAX_RANK);
  const int rank = check_h5(H5Sget_simple_extent_dims(*space, dims.data(), nullptr), site,
                            "cannot read the dims of \"" + name + "\"");
  // No filters: every element takes its bytes in the file, so a shape that outgrows the file is a
  // lie.
  int64_t bytes = element_bytes;
  for (int d = 0; d < rank; ++d) {
    if (dims[d] > hsize_t{1} << 48 ||
        __builtin_mul_overflow(bytes, static_cast<int64_t>(dims[d]), &bytes) ||
        bytes > state.file_bytes)
      refuse(site, name, "claims more elements than the file has bytes");
  }
  if (H5Dget_storage_size(dataset) < static_cast<hsize_t>(bytes))
    refuse(site, name, "was never written in full");
  return Shape(dims.begin(), dims.begin() + rank);
}

H5Dataset& H5File::State::dataset(const std::string& name) {
  const auto known = open_datasets.find(name);
  if (known != open_datasets.end()) return known->second;
  H5Dataset found;
  found.handle = open_h5_dataset(*this, name);
  const H5Handle type(H5Dget_type(*found.handle), H5Tclose, site, "H5Dget_type failed");
  const DType dtype = dtype_of_h5_type(*type, site, name);
  const auto size = static_cast<int64_t>(element_bytes(dtype));
  found.info = {name, checked_h5_shape(*found.handle, size, *this, name), dtype};
  const H5Handle creation(H5Dget_create_plist(*found.handle), H5Pclose, site,
                          "H5Dget_create_plist failed");
  if (H5Pget_layout(*creation) == H5D_CONTIGUOUS) found.offset = H5Dget_offset(*found.handle);
  return keep(name, std::move(found));
}

void H5File::read(const std::string& name, const Extent& extent, void* target) const {
  const H5Lock lock;
  const H5Site& site = state_->site;
  H5Dataset& dataset = state_->dataset(name);
  check_box(dataset, extent, site);
  if (extent.empty()) return;
  const H5Handle type = make_h5_type(dataset.info.dtype, site);
  const H5Handle file_space = make_h5_space(dataset.info.shape, site);
  select_extent(*file_space, extent, site);
  const H5Handle memory = memory_space(extent.elements(), site);
  check_h5(H5Dread(*dataset.handle, *type, *memory, *file_space, H5P_DEFAULT, target), site,
           "cannot read dataset \"" + name + "\"");
}

void H5File::read_range(const std::string& name, int64_t first, int64_t count, void* target) const {
  int64_t offset = 0, bytes = 0;
  {
    const H5Lock lock;
    const H5Dataset& dataset = state_->dataset(name);
    const auto size = static_cast<int64_t>(element_bytes(dataset.info.dtype));
    if (first < 0 || count < 0 || first + count > num_elements(dataset.info.shape))
      refuse(state_->site, name, "is asked for elements outside its shape");
    if (count == 0) return;
    offset = data_offset(name) + first * size;
    bytes = count * size;
  }
  read_data(state_->descriptor, state_->site, name, offset, static_cast<char*>(target), bytes);
}

int64_t H5File::data_offset(const std::string& name) const {
  const H5Lock lock;
  const H5Dataset& dataset = state_->dataset(name);
  if (dataset.offset == HADDR_UNDEF) refuse(state_->site, name, "is not contiguous");
  return static_cast<int64_t>(dataset.offset);
}

template <class T>
std::vector<T> H5File::read_all(const std::string& name) const {
  const H5DatasetInfo found = info(name);
  if (found.dtype != dtype_of<T>())
    refuse(state_->site, name,
           std::string("has elements of type ") + dtype_name(found.dtype) + "; expected " +
               dtype_name(dtype_of<T>()));
  std::vector<T> values(static_cast<size_t>(num_elements(found.shape)));
  read(name, whole(found.shape), values.data());
  return values;
}

template std::vector<double> H5File::read_all(const std::string&) const;
template std::vector<float> H5File::read_all(const std::string&) const;
template std::vector<int64_t> H5File::read_all(const std::string&) const;
template std::vector<int32_t> H5File::read_all(const std::string&) const;
template std::vector<uint8_t> H5File::read_all(const std::string&) const;

}  // namespace zea
