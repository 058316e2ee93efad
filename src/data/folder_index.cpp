// SPDX-License-Identifier: Apache-2.0
#include "data/folder_index.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "core/error.hpp"
#include "data/offsets.hpp"

namespace zea::detail {
namespace {

/// The only element of a dataset of the index.
int64_t read_number(const H5File& file, const std::string& name) {
  const auto values = file.read_all<int64_t>(name);
  if (values.size() != 1)
    throw DataError(file.path() + ": " + name + " has " + std::to_string(values.size()) +
                    " elements, must have 1; pack the folder again");
  return values[0];
}

}  // namespace

H5File FolderIndex::open(const std::string& where) {
  H5File file = H5File::open(where, ExitCode::Data);
  const std::string format = file.text_attribute("format").value_or("none");
  if (format != "zea.dataset.index")
    throw DataError(where + ": its format is \"" + format + "\", must be \"zea.dataset.index\"");
  return file;
}

FolderIndex::FolderIndex(const H5File& file)
    : path(file.path()),
      names(file.read_strings("names")),
      bytes(file.read_all<int64_t>("bytes")),
      firsts(file.read_all<int64_t>("first_samples")),
      token_offsets(file.read_all<int64_t>("token_offsets")),
      targets(file.read_all<int64_t>("targets")),
      items(file) {
  const int64_t largest = read_number(file, "max_token");
  if (largest < 0 || largest > std::numeric_limits<int32_t>::max())
    refuse("max_token is " + std::to_string(largest));
  max_token = static_cast<int32_t>(largest);
  if (file.has("learnt_placeholders"))
    learnt_placeholders = read_number(file, "learnt_placeholders");
  check();
}

void FolderIndex::refuse(const std::string& fault) const {
  throw DataError(path + ": " + fault +
                  "; remove it, and all files are looked through at every start, or pack again");
}

void FolderIndex::check() const {
  check_offsets(path, "first_samples", firsts, static_cast<int64_t>(samples()));
  check_offsets(path, "token_offsets", token_offsets,
                token_offsets.empty() ? 0 : token_offsets.back());
  items.check();
  if (names.empty() || firsts.size() != names.size() + 1 || bytes.size() != names.size() ||
      token_offsets.size() != samples() + 1 || items.samples() != samples())
    refuse("its parts contradict each other");
  for (const std::string& name : names)
    if (std::filesystem::path(name).filename() != name || name == "." || name == "..")
      refuse("it names a file elsewhere");
  for (size_t i = 0; i < samples(); ++i) {
    const int64_t tokens = token_offsets[i + 1] - token_offsets[i];
    if (tokens == 0 || targets[i] < 0 || targets[i] >= tokens)
      refuse("sample " + std::to_string(i) + " has " + std::to_string(tokens) + " tokens and " +
             std::to_string(targets[i]) + " targets");
  }
}

}  // namespace zea::detail
