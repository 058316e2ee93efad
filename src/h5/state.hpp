// SPDX-License-Identifier: Apache-2.0
// How the files of io/ call HDF5: one lock for the library, one place that turns a negative return
// code into a typed error with HDF5's own text, and handles that close themselves.
#pragma once

// The interface as of 1.10, whatever newer library is installed.
#define H5_USE_110_API
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include <hdf5.h>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/extent.hpp"
#include "files/direct_write.hpp"
#include "h5/h5.hpp"
#include "h5/reader.hpp"

namespace zea {

/// Held during every use of HDF5: not all builds of it are safe with threads. The first use in the
/// process switches off external links and filter plugins, the first in a thread HDF5's printing of
/// errors.
class H5Lock {
 public:
  H5Lock();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

/// Throws with the file, `what`, and the reasons that HDF5 has recorded. `needed_bytes` is told
/// when the disk is full.
[[noreturn]] void throw_h5(const H5Site& site, const std::string& what, int64_t needed_bytes = 0);

/// Returns `result` unless it is negative.
template <class Result>
Result check_h5(Result result, const H5Site& site, const std::string& what,
                int64_t needed_bytes = 0) {
  if (result < 0) throw_h5(site, what, needed_bytes);
  return result;
}

/// An HDF5 identifier with the function that closes it.
class H5Handle {
 public:
  H5Handle() = default;
  /// Throws when `id` is negative.
  H5Handle(hid_t id, herr_t (*close)(hid_t), const H5Site& site, const std::string& what)
      : id_(check_h5(id, site, what)), close_(close) {}
  H5Handle(H5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  H5Handle& operator=(H5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~H5Handle() {
    if (id_ >= 0) close_(id_);
  }

  hid_t operator*() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Closes now and checks.
  void close(const H5Site& site, const std::string& what) {
    check_h5(close_(std::exchange(id_, -1)), site, what);
  }

 private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

/// HDF5's type for a dtype, the same in files and in memory: little-endian.
H5Handle make_h5_type(DType dtype, const H5Site& site);

/// A data space of `shape`; a scalar one when it has no dims.
H5Handle make_h5_space(const Shape& shape, const H5Site& site);

/// Selects box `extent` in `space`.
void select_extent(hid_t space, const Extent& extent, const H5Site& site);

// The state of an open H5File. A file that is read does not use the HDF5 library; one that is
// written does, and remembers its datasets, so that a second write to one costs no look-up.

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
  /// Descriptor of the same file for direct access; -1: not open, or not supported by the file
  /// system.
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

/// Returns a dataset's name, shape and type. Throws, naming the type found, where zea does not read
/// it.
H5DatasetInfo h5_info(const H5Stored& stored, const H5Site& site, const std::string& name);
/// Reads box `extent` into packed `target`.
void read_h5_box(const H5File::State& state, const H5Stored& stored, const Extent& extent,
                 char* target, const std::string& name);

}  // namespace zea
