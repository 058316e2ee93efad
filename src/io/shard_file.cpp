// SPDX-License-Identifier: Apache-2.0
#include "io/shard_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.hpp"
#include "core/extent.hpp"
#include "core/system.hpp"
#include "core/text.hpp"
#include "files/durable_file.hpp"
#include "h5/state.hpp"
#include "io/manifest.hpp"
#include "io/strict_json.hpp"
#include "io/tensor_request.hpp"

namespace zea {
namespace {

constexpr const char* kShardFormat = "zea.shard";
constexpr const char* kRankPrefix = "rank-";
constexpr const char* kFrozenPrefix = "frozen-";
constexpr const char* kSuffix = ".h5";

/// Datasets are numbered below the tensor's name: one tensor may have several pieces of a state.
std::string dataset_name(const std::string& tensor, const std::string& state, size_t number) {
  return state + "/" + tensor + "/" + std::to_string(number);
}

void check_attribute(const H5File& shard, const char* name, const std::string& wanted) {
  const std::string found = shard.text_attribute(name).value_or("");
  if (found != wanted)
    throw WeightsError(shard.path() + ": this shard's " + name + " is \"" + found +
                       "\"; the manifest beside it wants \"" + wanted +
                       "\": files of different checkpoints are mixed");
}

std::vector<FileRange> data_ranges(const H5File& shard, const std::vector<std::string>& datasets) {
  std::vector<FileRange> ranges;
  for (const std::string& dataset : datasets) {
    const H5DatasetInfo info = shard.info(dataset);
    const auto bytes = num_elements(info.shape) * static_cast<int64_t>(element_bytes(info.dtype));
    if (bytes == 0) continue;  // lies nowhere
    const int64_t begin = shard.data_offset(dataset);
    ranges.push_back({begin, begin + bytes});
  }
  return ranges;
}

std::string numbered_name(const char* prefix, int64_t rank) {
  return formatted("%s%05ld%s", prefix, static_cast<long>(rank), kSuffix);
}

}  // namespace

std::string shard_file_name(int64_t rank) {
  return numbered_name(kRankPrefix, rank);
}

std::string frozen_file_name(int64_t rank) {
  return numbered_name(kFrozenPrefix, rank);
}

bool is_shard_name(const std::string& name) {
  return (name.starts_with(kRankPrefix) || name.starts_with(kFrozenPrefix)) &&
         name.ends_with(kSuffix);
}

ShardWriter::ShardWriter(const std::string& directory, const std::string& file,
                         const std::string& run_id, int64_t step)
    : file_(H5File::create(directory + "/" + file)), entry_{file, ""} {
  check_plain_name(file, directory);
  file_.write_text_attribute("format", kShardFormat);
  file_.write_text_attribute("version", kManifestVersion);
  file_.write_text_attribute("run_id", run_id);
  file_.write_text_attribute("step", std::to_string(step));
  file_.write_text_attribute("file", file);
}

int64_t ShardWriter::piece_bytes(const Extent& extent, DType dtype) {
  return extent.elements() * static_cast<int64_t>(element_bytes(dtype));
}

void ShardWriter::add(const std::string& tensor, const std::string& state, const Shape& shape,
                      const Extent& extent, DType dtype, const void* data) {
  Piece piece = begin(tensor, state, shape, extent, dtype);
  file_.write_part(piece.dataset, whole(extent.length), data);
  hash_part(piece, 0, extent.elements(), data);
  pieces_.push_back(std::move(piece));
}

Piece ShardWriter::begin(const std::string& tensor, const std::string& state, const Shape& shape,
                         const Extent& extent, DType dtype, int64_t elements_of_each) {
  ZEA_ASSERT(intersect(extent, whole(shape)) == extent);
  const std::string dataset = dataset_name(tensor, state, datasets_.size());
  Piece piece{tensor, state, extent, dtype, entry_.name, dataset, {}, elements_of_each};
  size_hashes(piece);
  file_.create_dataset(piece.dataset, extent.length, dtype);
  datasets_.push_back(piece.dataset);
  file_.write_text_attribute("global_shape", shape_text(shape), piece.dataset);
  file_.write_text_attribute("offset", shape_text(extent.offset), piece.dataset);
  file_.write_text_attribute("dtype", dtype_name(dtype), piece.dataset);
  return piece;
}

void ShardWriter::write(const Piece& piece, int64_t first, int64_t count, const void* data) {
  file_.write_range(piece.dataset, first, count, data);
}

std::vector<Piece> ShardWriter::finish() {
  const std::vector<FileRange> data = data_ranges(file_, datasets_);
  file_.close_and_sync();
  entry_.rest_hash = hash_rest(file_.path(), data, ExitCode::Storage);
  return std::move(pieces_);
}

const ManifestFile& ShardWriter::file() const {
  ZEA_ASSERT(!entry_.rest_hash.empty());
  return entry_;
}

H5File open_shard(const std::string& directory, const std::string& file, const Manifest& manifest) {
  check_plain_name(file, directory);
  const std::string path = directory + "/" + file;
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0)
    throw WeightsError(path + ": the manifest names this file: " + std::strerror(errno));
  if (!S_ISREG(status.st_mode))
    throw WeightsError(path + ": not a regular file (symbolic links are refused)");
  H5File shard = H5File::open(path);
  check_attribute(shard, "format", kShardFormat);
  check_attribute(shard, "version", manifest.version);
  check_attribute(shard, "run_id", manifest.run_id);
  const bool is_frozen = file.starts_with(kFrozenPrefix);
  check_attribute(shard, "step", std::to_string(is_frozen ? kEveryStep : manifest.position.step));
  check_attribute(shard, "file", file);
  return shard;
}

void check_shard_rest(const H5File& shard, const std::vector<const Piece*>& pieces,
                      const ManifestFile& file) {
  std::vector<std::string> datasets;
  for (const Piece* piece : pieces) datasets.push_back(piece->dataset);
  const std::vector<FileRange> data = data_ranges(shard, datasets);
  if (hash_rest(shard.path(), data, ExitCode::Weights) != file.rest_hash)
    throw WeightsError(shard.path() +
                       ": what it holds beside tensors has another hash than the manifest says: "
                       "the file is damaged");
}

void check_shard_piece(const H5File& shard, const Piece& piece) {
  const H5DatasetInfo found = shard.info(piece.dataset);
  if (found.shape == piece.extent.length && found.dtype == piece.dtype) return;
  throw WeightsError(shard.path() + ": dataset \"" + piece.dataset + "\" has shape " +
                     shape_text(found.shape) + " and type " + dtype_name(found.dtype) +
                     "; the manifest says " + shape_text(piece.extent.length) + " and " +
                     dtype_name(piece.dtype));
}

namespace {

/// Read at once: the rest is short, but for a file that is not what it should be.
constexpr int64_t kPartBytes = 1 << 20;

/// Reads no more than it is asked for: what lies between may be large, and not in memory.
class Rest {
 public:
  explicit Rest(const H5Site& site)
      : site_(site), file_(::open(site.path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!file_.is_open()) fail(std::strerror(errno));
    ::posix_fadvise(file_.number(), 0, 0, POSIX_FADV_RANDOM);
  }

  int64_t file_bytes() const {
    struct stat status {};
    if (::fstat(file_.number(), &status) != 0) fail(std::strerror(errno));
    return status.st_size;
  }
  const std::string& hash() const { return hash_; }

  void add(FileRange gap) {
    while (gap.begin < gap.end) {
      const size_t known = hash_.size();
      const int64_t wanted = std::min(kPartBytes, gap.end - gap.begin);
      hash_.resize(known + static_cast<size_t>(wanted));
      if (const char* fault = read_at(file_.number(), gap.begin, hash_.data() + known, wanted,
                                      "it was cut short meanwhile"))
        fail(fault);
      hash_ = hash_bytes(hash_.data(), static_cast<int64_t>(hash_.size()));
      gap.begin += wanted;
    }
  }

  [[noreturn]] void fail(const std::string& fault) const {
    throw_error(site_.code, site_.path + ": cannot be checked: " + fault);
  }

 private:
  const H5Site& site_;
  Descriptor file_;
  std::string hash_;  ///< of the parts so far
};

}  // namespace

std::string hash_rest(const std::string& path, std::vector<FileRange> data, ExitCode code) {
  std::sort(data.begin(), data.end(),
            [](const FileRange& a, const FileRange& b) { return a.begin < b.begin; });
  const H5Site site{path, code};
  Rest rest(site);
  const int64_t file_bytes = rest.file_bytes();
  int64_t end = 0;
  for (const FileRange& range : data) {
    if (range.begin < end || range.end > file_bytes)
      rest.fail("its tensors overlap or lie outside of it");
    rest.add({end, range.begin});
    end = range.end;
  }
  rest.add({end, file_bytes});
  return rest.hash();
}

}  // namespace zea
