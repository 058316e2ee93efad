// SPDX-License-Identifier: Apache-2.0
// Reading boxes out of pieces: a box is cut against each piece, the contiguous runs of the common
// part are walked in the order of the piece's bytes, and each block that a run touches is read
// whole and checked once.
#include "zea/io/checkpoint_source.hpp"

#include <algorithm>
#include <filesystem>
#include <list>
#include <map>
#include <mutex>
#include <set>

#include "tensor_request.hpp"
#include "zea/core/error.hpp"
#include "zea/io/shard_file.hpp"

namespace zea {
namespace {

constexpr size_t kOpenShards = 16;

int64_t bytes_of(const Piece& piece) {
  return ShardWriter::piece_bytes(piece.extent, piece.dtype);
}

/// Files beside the manifest that look like shards and are not named by it come from another save.
void check_directory(const std::string& directory, const Manifest& manifest) {
  const std::set<std::string> listed(manifest.files.begin(), manifest.files.end());
  for (const std::string& file : listed) {
    const std::string path = directory + "/" + file;
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::symlink_status(path, error);
    if (!std::filesystem::exists(status))
      throw WeightsError(path + ": the manifest names this file, but it is missing");
    if (!std::filesystem::is_regular_file(status))
      throw WeightsError(path + ": not a regular file (symbolic links are refused)");
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".h5") && !listed.contains(name))
      throw WeightsError(directory + "/" + name +
                         ": the manifest does not name this shard: files of different checkpoints "
                         "are mixed");
  }
}

}  // namespace

/// The shards that are open, the piece index, and the last checked block. One lock: a block is read
/// by one thread.
struct CheckpointSource::Files {
  struct OpenShard {
    std::string file;
    H5File shard;
    std::set<std::string> checked;  ///< datasets whose shape and type agree with the manifest
  };

  std::string directory;
  const Manifest& manifest;
  std::map<std::pair<std::string, std::string>, std::vector<const Piece*>> pieces;
  std::map<std::string, const ManifestTensor*> tensors;
  std::mutex mutex;
  std::list<OpenShard> shards;  ///< the one used last comes first
  const Piece* block_piece = nullptr;
  int64_t block_number = -1;
  std::vector<char> block;

  Files(std::string path, const Manifest& of) : directory(std::move(path)), manifest(of) {
    for (const Piece& piece : manifest.pieces)
      pieces[{piece.tensor, piece.state}].push_back(&piece);
    for (const ManifestTensor& tensor : manifest.tensors) tensors[tensor.name] = &tensor;
  }

  OpenShard& shard_of(const Piece& piece);
  /// Reads and checks block `number` of `piece` unless it is the one held.
  const char* checked_block(const Piece& piece, int64_t number);
  void copy_part(const Piece& piece, const Extent& part, const Extent& extent, DType dtype,
                 char* target);
};

CheckpointSource::Files::OpenShard& CheckpointSource::Files::shard_of(const Piece& piece) {
  const auto open = std::find_if(shards.begin(), shards.end(),
                                 [&](const OpenShard& shard) { return shard.file == piece.file; });
  if (open != shards.end()) {
    shards.splice(shards.begin(), shards, open);
  } else {
    if (shards.size() >= kOpenShards) shards.pop_back();
    shards.push_front({piece.file,
                       open_shard(directory, piece.file, manifest.run_id, manifest.position.step),
                       {}});
  }
  OpenShard& shard = shards.front();
  if (!shard.checked.contains(piece.dataset)) {
    check_shard_piece(shard.shard, piece);
    shard.checked.insert(piece.dataset);
  }
  return shard;
}

const char* CheckpointSource::Files::checked_block(const Piece& piece, int64_t number) {
  if (block_piece == &piece && block_number == number) return block.data();
  block_piece = nullptr;
  const OpenShard& open = shard_of(piece);
  const int64_t first = number * block_elements(piece.dtype);
  const int64_t count = std::min(block_elements(piece.dtype), piece.extent.elements() - first);
  const int64_t bytes = count * static_cast<int64_t>(element_bytes(piece.dtype));
  block.resize(static_cast<size_t>(bytes));
  open.shard.read_range(piece.dataset, first, count, block.data());
  if (hash_bytes(block.data(), bytes) != piece.block_hashes[static_cast<size_t>(number)])
    throw WeightsError(open.shard.path() + ": tensor \"" + piece.tensor + "\" (" + piece.state +
                       "), block " + std::to_string(number) + " of dataset \"" + piece.dataset +
                       "\": its hash is not the one in the manifest: the file is damaged");
  block_piece = &piece;
  block_number = number;
  return block.data();
}

void CheckpointSource::Files::copy_part(const Piece& piece, const Extent& part,
                                        const Extent& extent, DType dtype, char* target) {
  const int64_t in_block = block_elements(piece.dtype);
  const auto from_bytes = static_cast<int64_t>(element_bytes(piece.dtype));
  const auto to_bytes = static_cast<int64_t>(element_bytes(dtype));
  for (CopyRun run : copy_runs(part, piece.extent, extent)) {
    while (run.elements > 0) {
      const int64_t number = run.source_element / in_block;
      const int64_t inside = run.source_element - number * in_block;
      const int64_t count = std::min(run.elements, in_block - inside);
      convert_elements(piece.dtype, checked_block(piece, number) + inside * from_bytes, dtype,
                       target + run.target_element * to_bytes, count);
      run.source_element += count;
      run.target_element += count;
      run.elements -= count;
    }
  }
}

CheckpointSource::CheckpointSource(const std::string& directory)
    : directory_(directory), manifest_(read_manifest(directory)) {
  check_directory(directory, manifest_);
  for (const ManifestTensor& tensor : manifest_.tensors)
    tensors_.push_back({tensor.name, tensor.shape, tensor.dtype});
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  files_ = std::make_unique<Files>(directory_, manifest_);
}

CheckpointSource::~CheckpointSource() = default;

void CheckpointSource::read(const std::string& name, const Shape& shape, const Extent& extent,
                            DType dtype, void* target) const {
  read_state(name, kStateParameter, shape, extent, dtype, target);
}

void CheckpointSource::read_state(const std::string& name, const std::string& state,
                                  const Shape& shape, const Extent& extent, DType dtype,
                                  void* target) const {
  const TensorInfo& tensor = find_tensor(tensors_, name, directory_);
  check_request(tensor, shape, extent, dtype, directory_);
  const auto pieces = files_->pieces.find({name, state});
  if (pieces == files_->pieces.end())
    throw WeightsError(directory_ + ": tensor \"" + name + "\" has no " + state +
                       " in this checkpoint");
  const std::lock_guard<std::mutex> lock(files_->mutex);
  int64_t found = 0;
  for (const Piece* piece : pieces->second) {
    const Extent part = intersect(piece->extent, extent);
    if (part.empty()) continue;
    found += part.elements();
    files_->copy_part(*piece, part, extent, dtype, static_cast<char*>(target));
  }
  if (found != extent.elements())
    throw WeightsError(directory_ + ": the pieces of tensor \"" + name + "\" (" + state +
                       ") hold " + std::to_string(found) + " of " +
                       std::to_string(extent.elements()) + " elements asked for");
  check_finite(tensor, extent, dtype, target, directory_ + " (" + state + ")");
}

void CheckpointSource::check_all() const {
  check_coverage(manifest_);
  const std::lock_guard<std::mutex> lock(files_->mutex);
  for (const Piece& piece : manifest_.pieces) {
    const int64_t blocks = (bytes_of(piece) + kHashBlockBytes - 1) / kHashBlockBytes;
    for (int64_t number = 0; number < blocks; ++number) files_->checked_block(piece, number);
  }
}

}  // namespace zea
