// SPDX-License-Identifier: Apache-2.0
#include "zea/checkpoint/checkpoint_writer.hpp"

#include <filesystem>
#include <map>
#include <numeric>

#include "checkpoint_directory.hpp"
#include "own_pieces.hpp"
#include "zea/checkpoint/agree.hpp"
#include "zea/checkpoint/retention.hpp"
#include "zea/core/error.hpp"
#include "zea/io/checkpoint_list.hpp"
#include "zea/io/checkpoint_source.hpp"
#include "zea/io/durable_file.hpp"
#include "zea/io/shard_file.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

std::string describe_mesh(const Plan& plan) {
  std::string text = "dp_replicate " + std::to_string(plan.mesh.dp_replicate) + " x dp_shard " +
                     std::to_string(plan.mesh.dp_shard);
  if (plan.model.vision) text += ", vision " + plan.options.mesh_vision.strategy;
  return text + ", llm " + plan.options.mesh_llm.strategy;
}

void make_directory(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_storage_error("mkdir", path, error.value());
}

/// One save, from the first look at the directory to the final name.
class Save {
 public:
  Save(Engine& engine, Collectives& control, const CheckpointRequest& request)
      : engine_(engine),
        control_(control),
        request_(request),
        final_(request.directory + "/" + checkpoint_name(request.position.step)),
        unfinished_(final_ + detail::kUnfinishedSuffix) {}

  const std::string& path() const { return final_; }
  bool is_done_already();
  void prepare();
  void write();
  void remove_unfinished() noexcept;

 private:
  bool is_this_checkpoint() const;
  std::string write_own_shard();
  std::vector<std::string> gather_to_root(const std::string& own);
  Manifest make_manifest(const std::vector<std::string>& parts) const;
  void commit(const std::vector<std::string>& parts) const;
  void make_room() const;

  Engine& engine_;
  Collectives& control_;
  const CheckpointRequest& request_;
  std::string final_, unfinished_;
};

bool Save::is_this_checkpoint() const {
  if (!fs::exists(fs::symlink_status(final_))) return false;
  try {
    const CheckpointSource there(final_);
    return there.manifest().run_id == request_.run_id &&
           there.manifest().position == request_.position;
  } catch (const WeightsError&) {
    return false;
  }
}

bool Save::is_done_already() {
  int32_t done = 0;
  agree_on_root(control_, [&] { done = is_this_checkpoint(); });
  control_.broadcast(&done, 1, DType::Int32, 0).wait();
  return done != 0;
}

void Save::prepare() {
  int64_t needed = detail::own_file_bytes(engine_);
  control_.all_reduce(&needed, 1, DType::Int64, ReduceOp::Sum).wait();
  agree_on_root(control_, [&] {
    make_directory(request_.directory);
    detail::remove_checkpoint(unfinished_);
    const int64_t free = free_bytes(request_.directory);
    if (free >= 0 && free < needed)
      throw StorageError(request_.directory + ": a checkpoint needs " + std::to_string(needed) +
                         " bytes, free are " + std::to_string(free) +
                         "; make room, lower checkpoint.keep or choose another run.directory");
    make_directory(unfinished_);
  });
}

void Save::write() {
  std::string own;
  agree(control_, [&] { own = write_own_shard(); });
  const std::vector<std::string> parts = gather_to_root(own);
  agree_on_root(control_, [&] { commit(parts); });
}

/// A rank's pieces travel as a manifest of their own, so the root reads them with the checks of a
/// manifest.
std::string Save::write_own_shard() {
  Manifest part;
  part.files = {detail::shard_name(control_.rank())};
  const DType dtype = engine_.plan().precision.master;
  ShardWriter writer(unfinished_, part.files.front(), request_.run_id, request_.position.step);
  std::map<std::string, Shape> shapes;
  detail::for_each_own_piece(engine_, [&](const detail::OwnPiece& piece) {
    writer.add(piece.param.name, piece.state, piece.param.shape, piece.extent, dtype, piece.data);
    shapes[piece.param.name] = piece.param.shape;
  });
  part.pieces = writer.finish();
  for (const auto& [name, shape] : shapes) part.tensors.push_back({name, shape, dtype, false});
  return manifest_text(part);
}

std::vector<std::string> Save::gather_to_root(const std::string& own) {
  Counts counts(control_.size());
  const auto own_bytes = static_cast<int64_t>(own.size());
  control_.all_gather(&own_bytes, counts.data(), Counts(control_.size(), 1), DType::Int64).wait();
  const bool root = control_.rank() == 0;
  std::string all(root ? std::accumulate(counts.begin(), counts.end(), int64_t{0}) : 0, '\0');
  control_.gather(own.data(), all.data(), counts, DType::UInt8, 0).wait();
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t rank = 0; root && rank < counts.size(); ++rank) {
    parts.push_back(all.substr(begin, counts[rank]));
    begin += counts[rank];
  }
  return parts;
}

Manifest Save::make_manifest(const std::vector<std::string>& parts) const {
  const Plan& plan = engine_.plan();
  Manifest manifest;
  manifest.run_id = request_.run_id;
  manifest.position = request_.position;
  manifest.deck = request_.deck;
  manifest.config = plan.config_json;
  manifest.mesh = describe_mesh(plan);
  manifest.world_size = control_.size();
  std::vector<bool> trained(plan.model.params.size(), false);
  for (const FlatGroup& group : plan.groups)
    for (const FlatParam& member : group.params) trained[member.param] = group.trainable;
  for (size_t p = 0; p < plan.model.params.size(); ++p)
    manifest.tensors.push_back(
        {plan.model.params[p].name, plan.model.params[p].shape, plan.precision.master, trained[p]});
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const Manifest part = parse_manifest(parts[rank], "pieces of rank " + std::to_string(rank));
    manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
    manifest.pieces.insert(manifest.pieces.end(), part.pieces.begin(), part.pieces.end());
  }
  return manifest;
}

void Save::commit(const std::vector<std::string>& parts) const {
  const Manifest manifest = make_manifest(parts);
  check_coverage(manifest);
  write_virtual_model(unfinished_, manifest);
  write_text_durably(unfinished_ + "/" + kManifestFile, manifest_text(manifest));
  sync_directory(unfinished_);
  make_room();
  rename_durably(unfinished_, final_);
}

/// What has the final name is damaged or of another history: it is kept under another name.
void Save::make_room() const {
  if (fs::exists(fs::symlink_status(final_))) set_aside(final_);
}

void Save::remove_unfinished() noexcept {
  try {
    if (control_.rank() == 0) detail::remove_checkpoint(unfinished_);
  } catch (const std::exception&) {
    // The failure under way says more; the next save of this step tries again.
  }
}

}  // namespace

std::string write_checkpoint(Engine& engine, Collectives& control,
                             const CheckpointRequest& request) {
  ZEA_ASSERT(control.rank() == engine.world_rank() && control.size() == engine.plan().world_size());
  Save save(engine, control, request);
  if (save.is_done_already()) return save.path();
  save.prepare();
  try {
    save.write();
  } catch (...) {
    save.remove_unfinished();
    throw;
  }
  return save.path();
}

}  // namespace zea
