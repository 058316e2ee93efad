// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "files/durable_file.hpp"
#include "h5/state.hpp"
#include "io/manifest.hpp"
#include "io/model_files.hpp"
#include "io/pieces.hpp"
#include "io/shard_file.hpp"
#include "io/tensor_request.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-";

}  // namespace

std::string checkpoint_name(int64_t step) {
  return formatted("step-%08ld", static_cast<long>(step));
}

std::optional<int64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  int64_t step = -1;
  std::from_chars(name.data() + kStepPrefix.size(), name.data() + name.size(), step);
  if (step < 0 || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

bool has_manifest(const std::string& directory) {
  std::error_code error;
  return fs::is_regular_file(fs::symlink_status(directory + "/" + kManifestFile, error));
}

std::vector<std::string> directories_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  if (!fs::is_directory(directory, error)) return names;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    if (fs::is_directory(entry->symlink_status()))
      names.push_back(entry->path().filename().string());
  if (error) throw_storage_error("list", directory, error.value());
  return names;
}

std::vector<CheckpointEntry> list_checkpoints(const std::string& directory) {
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : directories_in(directory))
    if (const auto step = step_of_name(name); step && has_manifest(directory + "/" + name))
      entries.push_back({*step, directory + "/" + name});
  std::sort(entries.begin(), entries.end(),
            [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.step < b.step; });
  return entries;
}

std::vector<CheckpointEntry> list_checkpoints_of_run(const std::string& run) {
  std::vector<CheckpointEntry> entries = list_checkpoints(run + "/checkpoints");
  return entries.empty() ? list_checkpoints(run) : entries;
}

std::string run_of_checkpoint(const std::string& checkpoint) {
  const fs::path parent = fs::canonical(checkpoint).parent_path();
  return parent.filename() == "checkpoints" ? parent.parent_path().string() : "";
}

namespace {

/// Files next to the manifest that look like shards and are not named by it come from another save.
/// One listing tells the types of all files: every rank opens the checkpoint, and to ask for each
/// file would be a million requests of a thousand ranks.
void check_directory(const std::string& directory, const Manifest& manifest) {
  std::set<std::string> listed, found;
  for (const ManifestFile& file : manifest.files) listed.insert(file.name);
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (is_shard_name(name) && !listed.contains(name))
      throw WeightsError(directory + "/" + name +
                         ": the manifest does not name this shard: files of different checkpoints "
                         "are mixed");
    if (!listed.contains(name)) continue;
    if (entry.is_symlink() || !entry.is_regular_file())
      throw WeightsError(directory + "/" + name +
                         ": not a regular file (symbolic links are refused)");
    found.insert(name);
  }
  for (const std::string& file : listed)
    if (!found.contains(file))
      throw WeightsError(directory + "/" + file +
                         ": the manifest names this file, but it is missing");
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

// HDF5 virtual datasets over the shards: a view for people. A shard that is missing shows as NaN,
// not as zeros.
namespace {

using Pieces = std::map<std::string, std::vector<const Piece*>>;

/// In the names of virtual sources '%' starts a pattern.
std::string escaped(const std::string& name) {
  std::string text;
  for (const char letter : name) text += letter == '%' ? "%%" : std::string(1, letter);
  return text;
}

void fill_with_nan(hid_t creation, DType dtype, hid_t type, const H5Site& site) {
  if (!is_floating(dtype)) return;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  char value[sizeof(double)] = {};
  convert_elements(DType::Float64, &nan, dtype, value, 1);
  check_h5(H5Pset_fill_value(creation, type, value), site, "H5Pset_fill_value failed");
}

void write_tensor(hid_t file, const ManifestTensor& tensor, const std::vector<const Piece*>& pieces,
                  const H5Site& site) {
  const std::string what = "cannot make virtual dataset \"" + tensor.name + "\"";
  const H5Handle type = make_h5_type(tensor.dtype, site);
  const H5Handle space = make_h5_space(tensor.shape, site);
  const H5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, site, "H5Pcreate failed");
  fill_with_nan(*creation, tensor.dtype, *type, site);
  for (const Piece* piece : pieces) {
    if (piece->extent.empty()) continue;
    const H5Handle target = make_h5_space(tensor.shape, site);
    select_extent(*target, piece->extent, site);
    const H5Handle source = make_h5_space(piece->extent.length, site);
    check_h5(H5Pset_virtual(*creation, *target, escaped(piece->file).c_str(),
                            escaped(piece->dataset).c_str(), *source),
             site, what);
  }
  const hid_t id =
      H5Dcreate2(file, tensor.name.c_str(), *type, *space, H5P_DEFAULT, *creation, H5P_DEFAULT);
  H5Handle dataset(id, H5Dclose, site, what);
  dataset.close(site, what);
}

void write_virtual_model(const std::string& path, const Manifest& manifest) {
  const H5Lock lock;
  const H5Site site{path + ".tmp", ExitCode::Storage};
  Pieces pieces;
  for (const Piece& piece : manifest.pieces)
    if (piece.state == kStateParameter) pieces[piece.tensor].push_back(&piece);
  const H5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, site, "H5Pcreate failed");
  check_h5(H5Pset_libver_bounds(*access, H5F_LIBVER_V110, H5F_LIBVER_V110), site,
           "H5Pset_libver_bounds failed");
  check_h5(H5Pset_file_locking(*access, false, true), site, "H5Pset_file_locking failed");
  H5Handle file(H5Fcreate(site.path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, *access), H5Fclose, site,
                "cannot create");
  // A virtual dataset has dims: a scalar tensor has none and is left to the shards.
  for (const ManifestTensor& tensor : manifest.tensors)
    if (!tensor.shape.empty()) write_tensor(*file, tensor, pieces[tensor.name], site);
  check_h5(H5Fflush(*file, H5F_SCOPE_LOCAL), site, "cannot flush");
  file.close(site, "cannot close");
  sync_file(site.path);
  rename_durably(site.path, path);
}

}  // namespace

void complete_checkpoint(const std::string& directory, Manifest manifest) {
  check_coverage(manifest);
  const std::string view = directory + "/" + kViewFile;
  write_virtual_model(view, manifest);
  manifest.view_hash = hash_rest(view, {}, ExitCode::Storage);
  write_text_durably(directory + "/" + kManifestFile, manifest_text(manifest));
}

}  // namespace zea
