// SPDX-License-Identifier: Apache-2.0
// How the files of io/ call HDF5: one lock for the library, one place that turns a negative return
// code into a typed error with HDF5's own text, and handles that close themselves.
#pragma once

// The interface as of 1.10, whatever newer library is installed.
#define H5_USE_110_API
#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/extent.hpp"

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

/// Which file a call is about, and which error its failure is.
struct H5Site {
  std::string path;
  ExitCode code;
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

}  // namespace zea
