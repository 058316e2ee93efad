// SPDX-License-Identifier: Apache-2.0
// Text in HDF5: attributes and lists of strings. Written with fixed length, since the heap of
// variable-length strings has no checksum; read in both forms, since h5py writes the other.
#include <algorithm>

#include "h5_state.hpp"
#include "zea/io/h5.hpp"

namespace zea {
namespace {

H5Handle text_type(size_t bytes, const H5Site& site) {
  H5Handle type(H5Tcopy(H5T_C_S1), H5Tclose, site, "H5Tcopy failed");
  const std::string what = "cannot make a text type";
  check_h5(H5Tset_size(*type, std::max<size_t>(bytes, 1)), site, what);
  check_h5(H5Tset_strpad(*type, H5T_STR_NULLPAD), site, what);
  check_h5(H5Tset_cset(*type, H5T_CSET_UTF8), site, what);
  return type;
}

/// Removes what fills a fixed-length string up.
std::string without_padding(std::string text, H5T_str_t padding) {
  if (padding == H5T_STR_NULLTERM) text.resize(std::min(text.size(), text.find('\0')));
  const char fill = padding == H5T_STR_SPACEPAD ? ' ' : '\0';
  text.resize(text.find_last_not_of(fill) + 1);
  return text;
}

[[noreturn]] void refuse_text(const H5Site& site, const std::string& what, const std::string& why) {
  throw_error(site.code, site.path + ": " + what + " " + why);
}

/// Reads `count` strings of `type` with `read_into`.
template <class Read>
std::vector<std::string> read_text(hid_t type, int64_t count, const H5File::State& state,
                                   const std::string& what, Read read_into) {
  if (H5Tis_variable_str(type) != 0)
    refuse_text(
        state.site, what,
        "is text of variable length, which HDF5 does not protect against damage; write it with "
        "fixed length (in h5py: numpy.bytes_)");
  const size_t size = H5Tget_size(type);
  if (static_cast<int64_t>(size) > state.file_bytes / std::max<int64_t>(count, 1))
    refuse_text(state.site, what, "is longer than the file");
  std::string buffer(size * static_cast<size_t>(count), '\0');
  check_h5(read_into(static_cast<void*>(buffer.data())), state.site, "cannot read " + what);
  std::vector<std::string> values;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i)
    values.push_back(without_padding(buffer.substr(i * size, size), H5Tget_strpad(type)));
  return values;
}

}  // namespace

std::optional<std::string> H5File::text_attribute(const std::string& name,
                                                  const std::string& object) const {
  const H5Lock lock;
  const H5Site& site = state_->site;
  const std::string what = "attribute \"" + name + "\" of \"" + object + "\"";
  if (object != "/" && !state_->has_hard_link(object))
    refuse_text(site, what, "cannot be read: no such object");
  const htri_t exists = H5Aexists_by_name(*state_->file, object.c_str(), name.c_str(), H5P_DEFAULT);
  if (check_h5(exists, site, "cannot look up " + what) == 0) return std::nullopt;
  const H5Handle attribute(
      H5Aopen_by_name(*state_->file, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose, site, "cannot open " + what);
  const H5Handle type(H5Aget_type(*attribute), H5Tclose, site, "cannot read " + what);
  const H5Handle space(H5Aget_space(*attribute), H5Sclose, site, "cannot read " + what);
  if (H5Tget_class(*type) != H5T_STRING || H5Sget_simple_extent_npoints(*space) != 1)
    refuse_text(site, what, "is not one text");
  auto read_into = [&](void* target) { return H5Aread(*attribute, *type, target); };
  return read_text(*type, 1, *state_, what, read_into).front();
}

void H5File::write_text_attribute(const std::string& name, const std::string& text,
                                  const std::string& object) {
  const H5Lock lock;
  const H5Site& site = state_->site;
  const std::string what = "cannot write attribute \"" + name + "\" of \"" + object + "\"";
  const auto bytes = static_cast<int64_t>(text.size());
  const H5Handle type = text_type(text.size(), site), space = make_h5_space({}, site);
  const hid_t id = H5Acreate_by_name(*state_->file, object.c_str(), name.c_str(), *type, *space,
                                     H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  H5Handle attribute(check_h5(id, site, what, bytes), H5Aclose, site, what);
  check_h5(H5Awrite(*attribute, *type, text.c_str()), site, what, bytes);
  attribute.close(site, what);
}

std::vector<std::string> H5File::read_strings(const std::string& name) const {
  const H5Lock lock;
  const H5Site& site = state_->site;
  const std::string what = "dataset \"" + name + "\"";
  const H5Handle dataset = open_h5_dataset(*state_, name);
  const H5Handle type(H5Dget_type(*dataset), H5Tclose, site, "cannot read type of " + what);
  if (H5Tget_class(*type) != H5T_STRING) refuse_text(site, what, "does not hold text");
  const auto size = static_cast<int64_t>(H5Tget_size(*type));
  const Shape shape = checked_h5_shape(*dataset, size, *state_, name);
  if (shape.size() != 1) refuse_text(site, what, "is not a list");
  if (shape[0] == 0) return {};
  auto read_into = [&](void* target) {
    return H5Dread(*dataset, *type, H5S_ALL, H5S_ALL, H5P_DEFAULT, target);
  };
  return read_text(*type, shape[0], *state_, what, read_into);
}

void H5File::write_strings(const std::string& name, const std::vector<std::string>& values) {
  const H5Lock lock;
  const H5Site& site = state_->site;
  size_t size = 1;
  for (const std::string& value : values) size = std::max(size, value.size());
  std::string buffer(size * values.size(), '\0');
  for (size_t i = 0; i < values.size(); ++i) values[i].copy(buffer.data() + i * size, size);
  const H5Handle type = text_type(size, site);
  const H5Handle space = make_h5_space({static_cast<int64_t>(values.size())}, site);
  const std::string what = "cannot write dataset \"" + name + "\"";
  const auto bytes = static_cast<int64_t>(buffer.size());
  H5Handle dataset = make_h5_dataset(*state_->file, name, *type, *space, site, bytes);
  if (!values.empty())
    check_h5(H5Dwrite(*dataset, *type, H5S_ALL, H5S_ALL, H5P_DEFAULT, buffer.data()), site, what,
             bytes);
  dataset.close(site, what);
}

}  // namespace zea
