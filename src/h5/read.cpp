// SPDX-License-Identifier: Apache-2.0
// Reading elements: straight from where the file has them.
#include <algorithm>
#include <type_traits>

#include <fcntl.h>

#include "files/durable_file.hpp"
#include "h5/h5.hpp"
#include "h5/state.hpp"

namespace zea {
namespace {

/// Reads of this size come in rows of their like.
constexpr int64_t kLargeReadBytes = 1 << 20;
/// Fetched while what was read before is hashed.
constexpr int64_t kReadAheadBytes = 32 << 20;
/// Smaller parts are copied from a block that is read at once.
constexpr int64_t kSmallBytes = 16 << 10, kBlockBytes = 64 << 10;

constexpr const char* kOutsideShape = "is asked for elements outside its shape";

void read_data(int descriptor, const H5Site& site, const std::string& name, int64_t offset,
               char* target, int64_t bytes) {
  if (bytes >= kLargeReadBytes)
    ::posix_fadvise(descriptor, offset, bytes + kReadAheadBytes, POSIX_FADV_WILLNEED);
  if (const char* fault = read_at(descriptor, offset, target, bytes, "the file ends before it"))
    refuse_h5_dataset(site, name, std::string("cannot be read: ") + fault);
}

/// Reads runs of a box, which follow each other in the file.
class RunReader {
 public:
  RunReader(const H5File::State& state, const std::string& name) : state_(state), name_(name) {}

  /// `limit` is the end of what may be read.
  void read(int64_t offset, int64_t bytes, int64_t limit, char* target) {
    if (bytes >= kSmallBytes)
      return read_data(state_.descriptor, state_.site, name_, offset, target, bytes);
    if (offset < begin_ || offset + bytes > begin_ + std::ssize(block_)) {
      block_.resize(static_cast<size_t>(std::min(kBlockBytes, limit - offset)));
      begin_ = offset;
      read_data(state_.descriptor, state_.site, name_, begin_, block_.data(), std::ssize(block_));
    }
    std::copy_n(block_.data() + (offset - begin_), bytes, target);
  }

 private:
  const H5File::State& state_;
  const std::string& name_;
  std::string block_;
  int64_t begin_ = 0;
};

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>) return DType::Float64;
  if constexpr (std::is_same_v<T, float>) return DType::Float32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::Int64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::Int32;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::UInt8;
}

}  // namespace

H5DatasetInfo h5_info(const H5Stored& stored, const H5Site& site, const std::string& name) {
  if (stored.type.dtype) return {name, stored.shape, *stored.type.dtype};
  using Kind = H5Type::Kind;
  const char* kind = stored.type.kind == Kind::Integer ? "an integer"
                     : stored.type.kind == Kind::Float ? "a floating type"
                     : stored.type.is_text()           ? "text"
                                                       : "no number";
  refuse_h5_dataset(site, name,
                    "has elements of " + std::to_string(stored.type.bytes) + " bytes that are " +
                        kind +
                        " zea does not read; allowed: little-endian float64, float32, float16, "
                        "bfloat16, int64, int32, uint8");
}

void read_h5_box(const H5File::State& state, const H5Stored& stored, const Extent& extent,
                 char* target, const std::string& name) {
  if (extent.empty()) return;
  const auto size = static_cast<int64_t>(stored.type.bytes);
  const int64_t chunk_bytes = num_elements(stored.chunk) * size;
  RunReader reader(state, name);
  // Chunks that the box meets, by their place among all.
  Shape first = stored.chunk, last = stored.chunk, counts = stored.chunk;
  for (size_t d = 0; d < first.size(); ++d) {
    first[d] = extent.offset[d] / stored.chunk[d];
    last[d] = (extent.offset[d] + extent.length[d] - 1) / stored.chunk[d];
    counts[d] = (stored.shape[d] + stored.chunk[d] - 1) / stored.chunk[d];
  }
  for (Shape place = first;;) {
    Extent chunk = whole(stored.chunk);
    int64_t number = 0;
    for (size_t d = 0; d < place.size(); ++d) {
      chunk.offset[d] = place[d] * stored.chunk[d];
      number = number * counts[d] + place[d];
    }
    const auto begin = static_cast<int64_t>(stored.positions.at(static_cast<size_t>(number)));
    for (const CopyRun& run : copy_runs(intersect(chunk, extent), chunk, extent))
      reader.read(begin + run.source_element * size, run.elements * size, begin + chunk_bytes,
                  target + run.target_element * size);
    size_t d = place.size();
    while (d > 0 && ++place[d - 1] > last[d - 1]) {
      place[d - 1] = first[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

void H5File::read(const std::string& name, const Extent& extent, void* target) const {
  const H5Stored* stored = nullptr;
  {
    const H5Lock lock;
    ZEA_ASSERT(state_->reader);
    stored = &state_->reader->dataset(name);
    h5_info(*stored, state_->site, name);
  }
  if (extent.offset.size() != stored->shape.size() ||
      intersect(extent, whole(stored->shape)) != extent)
    refuse_h5_dataset(state_->site, name, kOutsideShape);
  read_h5_box(*state_, *stored, extent, static_cast<char*>(target), name);
}

void H5File::read_range(const std::string& name, int64_t first, int64_t count, void* target) const {
  const H5DatasetInfo found = info(name);
  const auto size = static_cast<int64_t>(element_bytes(found.dtype));
  if (first < 0 || count < 0 || first + count > num_elements(found.shape))
    refuse_h5_dataset(state_->site, name, kOutsideShape);
  if (count == 0) return;
  const int64_t offset = data_offset(name) + first * size;
  read_data(state_->descriptor, state_->site, name, offset, static_cast<char*>(target),
            count * size);
}

int64_t H5File::data_offset(const std::string& name) const {
  const H5Lock lock;
  if (!state_->reader) return state_->find_made(name).offset;
  const H5Stored& stored = state_->reader->dataset(name);
  if (!stored.is_contiguous || stored.positions.empty())
    refuse_h5_dataset(state_->site, name, "is not contiguous");
  return static_cast<int64_t>(stored.positions[0]);
}

template <class T>
std::vector<T> H5File::read_all(const std::string& name) const {
  const H5DatasetInfo found = info(name);
  if (found.dtype != dtype_of<T>())
    refuse_h5_dataset(state_->site, name,
                      std::string("has elements of type ") + dtype_name(found.dtype) +
                          "; expected " + dtype_name(dtype_of<T>()));
  std::vector<T> values(static_cast<size_t>(num_elements(found.shape)));
  read(name, whole(found.shape), values.data());
  return values;
}

template std::vector<double> H5File::read_all(const std::string&) const;
template std::vector<float> H5File::read_all(const std::string&) const;
template std::vector<int64_t> H5File::read_all(const std::string&) const;
template std::vector<int32_t> H5File::read_all(const std::string&) const;
template std::vector<uint8_t> H5File::read_all(const std::string&) const;

}  // namespace zea
