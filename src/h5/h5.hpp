// SPDX-License-Identifier: Apache-2.0
// HDF5 files. They are written by HDF5, every return code checked and carrying its own text; all
// calls hold one lock, so any build of it is safe with threads. They are read without it, since
// they may be made to harm: every address and count is checked, only data that lies in the file,
// unfiltered and wholly written, is read, by hard links.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/extent.hpp"

namespace zea {

struct H5DatasetInfo {
  std::string name;  ///< path inside the file without the leading '/'
  Shape shape;
  DType dtype = DType::Float32;
};

/// An open HDF5 file; closed by its destructor (errors of close are only seen through
/// close_and_sync()).
class H5File {
 public:
  /// Opens for reading; what is not read here is checked when it is asked for. Throws the error
  /// type that `code` selects, naming the file and the place.
  static H5File open(const std::string& path, ExitCode code = ExitCode::Weights);
  /// Creates with H5F_LIBVER_LATEST metadata (checksummed); refuses an existing file. Throws
  /// StorageError.
  static H5File create(const std::string& path);

  H5File(H5File&&) noexcept;
  H5File& operator=(H5File&&) noexcept;
  ~H5File();

  const std::string& path() const;
  bool has(const std::string& name) const;
  /// All datasets of numbers, in name order; descends into groups. Datasets of strings are left
  /// out.
  std::vector<H5DatasetInfo> datasets() const;
  H5DatasetInfo info(const std::string& name) const;

  /// Reads box `extent` of dataset `name` into packed `target`, as elements of the file's own
  /// dtype.
  void read(const std::string& name, const Extent& extent, void* target) const;
  /// Reads row-major elements [first, first + count) of a contiguous dataset straight from the
  /// file.
  void read_range(const std::string& name, int64_t first, int64_t count, void* target) const;
  /// Whole dataset as a vector; the file's dtype must be T's (int32, int64, float, double, uint8).
  template <class T>
  std::vector<T> read_all(const std::string& name) const;

  /// Creates a contiguous dataset (fill never) and writes it from packed `source`.
  void write(const std::string& name, const Shape& shape, DType dtype, const void* source);
  /// Creates a contiguous dataset, allocated now, to be filled by write_part. A '/' in the name
  /// makes groups.
  void create_dataset(const std::string& name, const Shape& shape, DType dtype);
  void write_part(const std::string& name, const Extent& extent, const void* source);
  /// Writes row-major elements [first, first + count) of a contiguous dataset straight into the
  /// file; several threads may.
  void write_range(const std::string& name, int64_t first, int64_t count, const void* source);
  /// Where the elements of a contiguous dataset start in the file: for pwrite by the caller.
  int64_t data_offset(const std::string& name) const;

  /// A text attribute of the root group, or of dataset `object`; nullopt when it is absent.
  std::optional<std::string> text_attribute(const std::string& name,
                                            const std::string& object = "/") const;
  void write_text_attribute(const std::string& name, const std::string& text,
                            const std::string& object = "/");
  std::vector<std::string> read_strings(const std::string& name) const;  ///< a 1-d string dataset
  void write_strings(const std::string& name, const std::vector<std::string>& values);

  /// Flushes, closes and checks; then fsyncs the file. Call it on every file that was written.
  void close_and_sync();

  struct State;  ///< complete only inside io/

 private:
  explicit H5File(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace zea
