// SPDX-License-Identifier: Apache-2.0
// What an open H5File holds. One that was opened is read without HDF5; one that is being made is
// written by it, and its datasets are remembered, so that a second write to one costs no look-up.
#pragma once

#include <memory>
#include <unordered_map>

#include "files/direct_write.hpp"
#include "h5/call.hpp"
#include "h5/h5.hpp"
#include "h5/reader.hpp"

namespace zea {

/// A dataset that was made.
struct H5Made {
  H5Handle handle;  ///< empty when too many were open
  H5DatasetInfo info;
  int64_t offset = 0;  ///< of its elements in the file

  int64_t bytes() const {
    return num_elements(info.shape) * static_cast<int64_t>(element_bytes(info.dtype));
  }
};

struct H5File::State {
  H5Site site;
  int descriptor = -1;  ///< HDF5's own where the file is being made
  /// Of the same file, past the kernel's buffers; -1 where it is not open or the file system has no
  /// such thing.
  int direct_descriptor = -1;
  UnsyncedBytes unsynced;
  H5Handle file;
  std::unordered_map<std::string, H5Made> made;
  size_t open_handles = 0;           ///< of `made`
  std::unique_ptr<H5Reader> reader;  ///< of one that was opened

  ~State();  // NOLINT(bugprone-exception-escape): see there
  void open_direct();
  void close_direct();

  /// Throws when there is none.
  H5Made& find_made(const std::string& name);
  H5Made& keep(H5Made made);
  void close_datasets();
};

/// Makes the groups that a '/' in `name` asks for.
void make_h5_groups(hid_t file, const std::string& name, const H5Site& site);
/// Makes a contiguous dataset without time stamps, allocated now, never filled.
H5Handle make_h5_dataset(hid_t file, const std::string& name, hid_t type, hid_t space,
                         const H5Site& site, int64_t bytes);

/// What of a dataset zea reads. Throws saying what its elements are instead when they are none of
/// ours.
H5DatasetInfo h5_info(const H5Stored& stored, const H5Site& site, const std::string& name);
/// Reads box `extent` into packed `target`.
void read_h5_box(const H5File::State& state, const H5Stored& stored, const Extent& extent,
                 char* target, const std::string& name);

}  // namespace zea
