// SPDX-License-Identifier: Apache-2.0
// Text in HDF5: attributes and lists of strings, of fixed length, since the heap of those of
// variable length, which h5py writes where it is not told otherwise, has no checksum.
#include <algorithm>

#include "h5/h5.hpp"
#include "h5/state.hpp"

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
std::string without_padding(std::string text, char padding) {
  constexpr char kEndsWithNul = 0, kSpaces = 2;
  if (padding == kEndsWithNul) text.resize(std::min(text.size(), text.find('\0')));
  text.resize(text.find_last_not_of(padding == kSpaces ? ' ' : '\0') + 1);
  return text;
}

[[noreturn]] void refuse_text(const H5Site& site, const std::string& what, const std::string& why) {
  throw_error(site.code, site.path + ": " + what + " " + why);
}

/// The `count` strings of `bytes`, which HDF5 may have padded.
std::vector<std::string> split_text(const H5Type& type, const std::string& bytes, size_t count) {
  std::vector<std::string> values;
  for (size_t i = 0; i < count; ++i)
    values.push_back(without_padding(bytes.substr(i * type.bytes, type.bytes), type.padding));
  return values;
}

void check_length(const H5Type& type, const H5Site& site, const std::string& what) {
  if (type.kind == H5Type::Kind::VariableText)
    refuse_text(
        site, what,
        "is text of variable length, which HDF5 does not protect against damage; write it with "
        "fixed length (in h5py: numpy.bytes_)");
}

}  // namespace

std::optional<std::string> H5File::text_attribute(const std::string& name,
                                                  const std::string& object) const {
  const H5Lock lock;
  const H5Site& site = state_->site;
  const std::string what = "attribute \"" + name + "\" of \"" + object + "\"";
  ZEA_ASSERT(state_->reader);
  const std::optional<H5Attribute> found = state_->reader->attribute(object, name);
  if (!found) return std::nullopt;
  uint64_t values = found->space.is_null ? 0 : 1;
  for (const uint64_t dim : found->space.dims) values *= dim;
  if (!found->type.is_text() || values != 1) refuse_text(site, what, "is not one text");
  check_length(found->type, site, what);
  if (found->value.size() < found->type.bytes) refuse_text(site, what, "is longer than its value");
  return split_text(found->type, found->value, 1).front();
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
  ZEA_ASSERT(state_->reader);
  const H5Stored& stored = state_->reader->dataset(name);
  if (!stored.type.is_text()) refuse_text(site, what, "does not hold text");
  check_length(stored.type, site, what);
  if (stored.shape.size() != 1) refuse_text(site, what, "is not a list");
  const auto count = static_cast<size_t>(stored.shape[0]);
  std::string bytes(count * stored.type.bytes, '\0');
  read_h5_box(*state_, stored, whole(stored.shape), bytes.data(), name);
  return split_text(stored.type, bytes, count);
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
