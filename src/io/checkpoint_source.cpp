// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint_source.hpp"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.hpp"
#include "io/checkpoint_list.hpp"
#include "io/companions.hpp"
#include "io/file_rest.hpp"
#include "io/piece_reader.hpp"
#include "io/shard_file.hpp"
#include "io/tensor_request.hpp"

namespace zea {
namespace {

/// Files beside the manifest that look like shards and are not named by it come from another save.
void check_directory(const std::string& directory, const Manifest& manifest) {
  std::set<std::string> listed;
  for (const ManifestFile& file : manifest.files) listed.insert(file.name);
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
    if (is_shard_name(name) && !listed.contains(name))
      throw WeightsError(directory + "/" + name +
                         ": the manifest does not name this shard: files of different checkpoints "
                         "are mixed");
  }
}

}  // namespace

CheckpointSource::CheckpointSource(const std::string& directory)
    : directory_(directory), manifest_(read_manifest(directory)) {
  check_directory(directory, manifest_);
  for (const ManifestTensor& tensor : manifest_.tensors)
    tensors_.push_back({tensor.name, tensor.shape, tensor.dtype});
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  for (const ManifestFile& file : manifest_.files) shards_[file.name].file = &file;
  for (const Piece& piece : manifest_.pieces) shards_[piece.file].pieces.push_back(&piece);
  pieces_ = std::make_unique<PieceReader>(
      directory_, manifest_, [this](const std::string& file) { return open_checked(file); });
}

/// One caller at a time: the reader has a lock, and check_all() asks when it is done.
H5File CheckpointSource::open_checked(const std::string& file) const {
  H5File opened = open_shard(directory_, file, manifest_);
  Shard& shard = shards_.at(file);
  if (!shard.is_checked && !lacks_rest_hashes())
    check_shard_rest(opened, shard.pieces, *shard.file);
  shard.is_checked = true;
  return opened;
}

bool CheckpointSource::lacks_rest_hashes() const {
  return manifest_.version == kFirstManifestVersion;
}

std::string CheckpointSource::note() const {
  if (!lacks_rest_hashes()) return "";
  return directory_ +
         ": of format version 1, where only tensors have hashes: damage to the rest of a file may "
         "go unseen; zea-consolidate --ranks N makes a checkpoint of version " +
         kManifestVersion + " of it";
}

CheckpointSource::~CheckpointSource() = default;

std::string CheckpointSource::companion_folder() const {
  const std::string run = run_of_checkpoint(directory_);
  return run.empty() ? "" : run + "/" + kCompanionFolder;
}

std::vector<std::string> CheckpointSource::companions() const {
  const std::string folder = companion_folder();
  return folder.empty() ? std::vector<std::string>{} : companion_names(folder);
}

std::string CheckpointSource::companion(const std::string& name) const {
  const std::vector<std::string> names = companions();
  if (std::ranges::find(names, name) == names.end()) return StateSource::companion(name);
  return read_model_text(companion_folder() + "/" + name);
}

void CheckpointSource::read(const std::string& name, const Shape& shape, const Extent& extent,
                            DType dtype, void* target) const {
  read_state(name, kStateParameter, shape, extent, dtype, target);
}

void CheckpointSource::read_state(const std::string& name, const std::string& state,
                                  const Shape& shape, const Extent& extent, DType dtype,
                                  void* target) const {
  const TensorInfo held = state_info(name, state);
  check_request(held, shape, extent, dtype, directory_);
  pieces_->read(held, state, extent, dtype, target);
}

std::vector<std::string> CheckpointSource::states(const std::string& name) const {
  return pieces_->states(name);
}

TensorInfo CheckpointSource::state_info(const std::string& name, const std::string& state) const {
  return pieces_->info(find_tensor(tensors_, name, directory_), state);
}

void CheckpointSource::check_all() const {
  pieces_->check_all();
  for (const auto& [name, shard] : shards_)
    if (!shard.is_checked) open_checked(name);  // without any piece
  const std::string view = directory_ + "/" + kViewFile;
  if (!manifest_.view_hash.empty() && hash_rest(view, {}, ExitCode::Weights) != manifest_.view_hash)
    throw WeightsError(view + ": has another hash than the manifest says: the file is damaged");
}

}  // namespace zea
