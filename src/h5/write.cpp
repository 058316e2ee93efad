// SPDX-License-Identifier: Apache-2.0
// Writing: contiguous datasets, allocated when they are made and never filled, so that every byte
// is written once.
#include <unistd.h>

#include "files/direct_write.hpp"
#include "h5/h5.hpp"
#include "h5/state.hpp"

namespace zea {
namespace {

H5Handle creation_properties(const H5Site& site) {
  H5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, site, "H5Pcreate failed");
  const std::string what = "cannot set a dataset's properties";
  check_h5(H5Pset_obj_track_times(*creation, false), site, what);  // same contents, same bytes
  check_h5(H5Pset_layout(*creation, H5D_CONTIGUOUS), site, what);
  check_h5(H5Pset_alloc_time(*creation, H5D_ALLOC_TIME_EARLY), site, what);
  check_h5(H5Pset_fill_time(*creation, H5D_FILL_TIME_NEVER), site, what);
  return creation;
}

}  // namespace

void H5File::State::open_direct() {
  if (direct_descriptor < 0) direct_descriptor = zea::open_direct(site.path);
}

void H5File::State::close_direct() {
  if (direct_descriptor >= 0) ::close(direct_descriptor);
  direct_descriptor = -1;
}

void make_h5_groups(hid_t file, const std::string& name, const H5Site& site) {
  const std::string what = "cannot make the groups of \"" + name + "\"";
  const H5Handle creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose, site, what);
  check_h5(H5Pset_obj_track_times(*creation, false), site, what);
  for (size_t end = name.find('/'); end != std::string::npos; end = name.find('/', end + 1)) {
    const std::string group = name.substr(0, end);
    if (check_h5(H5Lexists(file, group.c_str(), H5P_DEFAULT), site, what) > 0) continue;
    H5Handle made(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, *creation, H5P_DEFAULT), H5Gclose,
                  site, what);
    made.close(site, what);
  }
}

H5Handle make_h5_dataset(hid_t file, const std::string& name, hid_t type, hid_t space,
                         const H5Site& site, int64_t bytes) {
  make_h5_groups(file, name, site);
  const H5Handle creation = creation_properties(site);
  const std::string what = "cannot create dataset \"" + name + "\"";
  const hid_t id = H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, *creation, H5P_DEFAULT);
  return H5Handle(check_h5(id, site, what, bytes), H5Dclose, site, what);
}

void H5File::create_dataset(const std::string& name, const Shape& shape, DType dtype) {
  const H5Lock lock;
  const H5Site& site = state_->site;
  H5Made made;
  made.info = {name, shape, dtype};
  const H5Handle type = make_h5_type(dtype, site), space = make_h5_space(shape, site);
  made.handle = make_h5_dataset(*state_->file, name, *type, *space, site, made.bytes());
  made.offset = static_cast<int64_t>(H5Dget_offset(*made.handle));
  state_->keep(std::move(made));
}

void H5File::write_part(const std::string& name, const Extent& extent, const void* source) {
  const H5Lock lock;
  const H5Site& site = state_->site;
  H5Made& dataset = state_->find_made(name);
  ZEA_ASSERT(extent.offset.size() == dataset.info.shape.size());
  ZEA_ASSERT(intersect(extent, whole(dataset.info.shape)) == extent);
  if (extent.empty()) return;
  const H5Handle type = make_h5_type(dataset.info.dtype, site);
  const H5Handle file_space = make_h5_space(dataset.info.shape, site);
  select_extent(*file_space, extent, site);
  const H5Handle memory = make_h5_space({extent.elements()}, site);
  const std::string what = "cannot write dataset \"" + name + "\"";
  if (!dataset.handle)
    dataset.handle =
        H5Handle(H5Dopen2(*state_->file, name.c_str(), H5P_DEFAULT), H5Dclose, site, what);
  check_h5(H5Dwrite(*dataset.handle, *type, *memory, *file_space, H5P_DEFAULT, source), site, what,
           dataset.bytes());
}

void H5File::write(const std::string& name, const Shape& shape, DType dtype, const void* source) {
  create_dataset(name, shape, dtype);
  write_part(name, whole(shape), source);
}

void H5File::write_range(const std::string& name, int64_t first, int64_t count,
                         const void* source) {
  int64_t offset = 0, bytes = 0;
  int direct = -1;
  {
    const H5Lock lock;
    const H5Made& dataset = state_->find_made(name);
    const auto size = static_cast<int64_t>(element_bytes(dataset.info.dtype));
    ZEA_ASSERT(first >= 0 && count >= 0 && first + count <= num_elements(dataset.info.shape));
    if (count == 0) return;
    offset = data_offset(name) + first * size;
    bytes = count * size;
    if (bytes >= kMinDirectBytes) state_->open_direct();
    direct = state_->direct_descriptor;
  }
  const std::string& path = state_->site.path;
  const int64_t buffered =
      write_past_buffers(direct, state_->descriptor, path, offset, source, bytes);
  state_->unsynced.add(state_->descriptor, path, buffered);
}

}  // namespace zea
