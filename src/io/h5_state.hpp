// SPDX-License-Identifier: Apache-2.0
// What an open H5File holds: the file, and the datasets already opened and checked, so that a
// second read of one costs no look-up.
#pragma once

#include <unordered_map>

#include "h5_call.hpp"
#include "zea/io/h5.hpp"

namespace zea {

/// An open dataset that has passed every check.
struct H5Dataset {
  H5Handle handle;
  H5DatasetInfo info;
  haddr_t offset = HADDR_UNDEF;  ///< of its elements in the file; undefined unless contiguous

  int64_t bytes() const {
    return num_elements(info.shape) * static_cast<int64_t>(element_bytes(info.dtype));
  }
};

struct H5File::State {
  H5Site site;
  int64_t file_bytes = 0;  ///< when it was opened
  int descriptor = -1;     ///< HDF5's own, for pread and pwrite
  /// Of the same file, past the kernel's buffers; -1 where it is not open or the file system has no
  /// such thing.
  int direct_descriptor = -1;
  H5Handle file;
  std::unordered_map<std::string, H5Dataset> open_datasets;

  /// Closes in the right order: a file with open objects in it stays open.
  ~State() {
    const H5Lock lock;
    open_datasets.clear();
    file = H5Handle();
    close_direct();
  }
  void open_direct();
  void close_direct();

  H5Dataset& dataset(const std::string& name);
  void close_datasets();
  H5Dataset& keep(const std::string& name, H5Dataset dataset);
  /// False when there is none. Throws when a component of the path is a soft or external link.
  bool has_hard_link(const std::string& name) const;
};

/// Opens `name` and checks layout, filters, storage, rank, dims and sizes, in an order that touches
/// no other file.
H5Handle open_h5_dataset(const H5File::State& state, const std::string& name);
Shape checked_h5_shape(hid_t dataset, int64_t element_bytes, const H5File::State& state,
                       const std::string& name);

/// Makes the groups that a '/' in `name` asks for.
void make_h5_groups(hid_t file, const std::string& name, const H5Site& site);
/// Makes a contiguous dataset without time stamps, allocated now, never filled.
H5Handle make_h5_dataset(hid_t file, const std::string& name, hid_t type, hid_t space,
                         const H5Site& site, int64_t bytes);

}  // namespace zea
