// SPDX-License-Identifier: Apache-2.0
// One long array of a data set's file: in memory, or read from the file piece by piece.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "h5/h5.hpp"

namespace zea::detail {

template <class T>
class Contents {
 public:
  Contents(const H5File& file, std::string name, int64_t held_bytes) : name_(std::move(name)) {
    const H5DatasetInfo info = file.info(name_);
    if (info.shape.size() != 1)
      throw DataError(file.path() + ": " + name_ + " has " + std::to_string(info.shape.size()) +
                      " dims, must have 1");
    length_ = info.shape[0];
    if (length_ > 0 && length_ * static_cast<int64_t>(sizeof(T)) <= held_bytes) {
      held_ = file.read_all<T>(name_);
    } else if (length_ > 0) {
      check_readable(file, info);
    }
  }

  int64_t length() const { return length_; }
  /// Whether it is read from the file whenever it is asked for.
  bool is_on_disk() const { return length_ > 0 && held_.empty(); }

  std::vector<T> read(const H5File& file, int64_t begin, int64_t end) const {
    if (!held_.empty()) return {held_.begin() + begin, held_.begin() + end};
    std::vector<T> values(static_cast<size_t>(end - begin));
    if (end > begin) file.read_range(name_, begin, end - begin, values.data());
    return values;
  }

 private:
  /// Checks what read_range would find out in the middle of a run.
  static void check_readable(const H5File& file, const H5DatasetInfo& info) {
    constexpr DType expected = sizeof(T) == 8   ? DType::Int64
                               : sizeof(T) == 4 ? DType::Int32
                                                : DType::UInt8;
    if (info.dtype != expected)
      throw DataError(file.path() + ": " + info.name + " is " + dtype_name(info.dtype) +
                      ", must be " + dtype_name(expected));
    file.data_offset(info.name);  // throws unless it is contiguous
  }

  std::string name_;
  int64_t length_ = 0;
  std::vector<T> held_;
};

}  // namespace zea::detail
