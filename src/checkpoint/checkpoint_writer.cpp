// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_writer.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "checkpoint/held_boxes.hpp"
#include "comm/agree.hpp"
#include "core/error.hpp"
#include "core/system.hpp"
#include "files/durable_file.hpp"
#include "io/checkpoint.hpp"
#include "io/retention.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

constexpr double kMiB = 1 << 20;

void make_directory(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_storage_error("mkdir", path, error.value());
}

std::string describe_link_error(int error_number) {
  if (error_number == 0) return "";
  if (error_number == ESTALE) return "the file of the last checkpoint was changed or replaced";
  return std::string("link failed: ") + std::strerror(error_number);
}

template <class Result>
bool is_pending(const std::future<Result>& future) {
  return future.valid() && future.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

std::string describe_module(const Plan& plan, const ModuleGrid& grid) {
  std::string text = grid.module + " " + plan.options.meshes[grid.module].strategy;
  if (grid.pp > 1) text += " pp " + std::to_string(grid.pp);
  if (grid.tp > 1) text += " tp " + std::to_string(grid.tp);
  if (grid.cp > 1) text += " cp " + std::to_string(grid.cp);
  if (grid.ep() > 1) text += " ep " + std::to_string(grid.ep());
  if (grid.ep_tp > 1) text += " etp 1";
  return text;
}

/// A rank's pieces travel as a manifest of their own, so the root reads them with the checks of a
/// manifest.
std::string text_of_part(const ModelSpec& model, Manifest part) {
  std::map<std::string, Shape> shapes;
  for (const ParamSpec& param : model.params) shapes[param.name] = param.tensor_shape();
  std::set<std::string> named;
  for (const Piece& piece : part.pieces)
    if (named.insert(piece.tensor).second)
      part.tensors.push_back({piece.tensor, shapes.at(piece.tensor), piece.dtype, false});
  return manifest_text(part);
}

Manifest join_parts(const Plan& plan, const std::vector<std::string>& parts) {
  Manifest manifest;
  manifest.config = plan.config_json;
  manifest.mesh = describe_mesh(plan);
  manifest.world_size = static_cast<int>(parts.size());
  std::vector<bool> trained(plan.model.params.size(), false);
  for (const FlatBuffer& buffer : plan.buffers)
    for (const FlatParam& member : buffer.params)
      for (const int param : plan.cuts[member.param].params_of_ranks(member.param))
        trained[param] = buffer.trainable;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const Manifest part = parse_manifest(parts[rank], "pieces of rank " + std::to_string(rank));
    manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
    manifest.pieces.insert(manifest.pieces.end(), part.pieces.begin(), part.pieces.end());
  }
  std::map<std::string, DType> types;
  for (const Piece& piece : manifest.pieces)
    if (piece.state == kStateParameter) types[piece.tensor] = piece.dtype;
  for (size_t p = 0; p < plan.model.params.size(); ++p) {
    const ParamSpec& param = plan.model.params[p];
    if (param.begins_tensor())
      manifest.tensors.push_back({param.name, param.tensor_shape(), types[param.name], trained[p]});
  }
  return manifest;
}

}  // namespace

std::string describe_mesh(const Plan& plan) {
  std::string text = "dp_replicate " + std::to_string(plan.mesh.dp_replicate) + " x dp_shard " +
                     std::to_string(plan.mesh.dp_shard);
  for (const ModuleGrid& grid : plan.mesh.modules) text += ", " + describe_module(plan, grid);
  return text;
}

void detail::wait_while_slow(ActionRecord& record, const std::function<bool()>& is_done,
                             const std::function<int64_t()>& count) {
  for (int64_t last = 0; !is_done();) {
    const int64_t now = count();
    if (std::exchange(last, now) != now) record.moved();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// The save that is under way.
struct CheckpointWriter::Save {
  CheckpointRequest request;
  std::string final_path, unfinished;
  std::string frozen_file;  ///< its name in these
  /// First the frozen file that may be linked; then the one that was linked or written.
  std::optional<detail::FrozenShard> frozen = {};
  bool is_linked = false;
  int link_error = 0;                             ///< errno
  std::unique_ptr<detail::ShardSave> shard = {};  ///< null where the checkpoint is there already
  bool has_begun_commit = false;
  std::future<double> committed = {};  ///< on the root: seconds
  double start_seconds = 0, stall_seconds = 0, copy_seconds = 0, commit_seconds = 0;

  bool is_writing_file() const { return shard && !shard->is_done(); }
};

CheckpointWriter::CheckpointWriter(Engine& engine, Collectives& control)
    : engine_(engine), control_(control) {
  ZEA_ASSERT(control.rank() == engine.world_rank() && control.size() == engine.plan().world_size());
}

CheckpointWriter::~CheckpointWriter() = default;

/// Runs on the root. A save may need the room and the names of checkpoints that are being
/// removed.
void CheckpointWriter::wait_for_removal() {
  if (!removal_.valid()) return;
  const ActionRecord::Action action(record(), "remove old checkpoints");
  detail::wait_while_slow(
      record(), [&] { return !is_pending(removal_); }, [&] { return removed_files_.load(); });
  try {
    removal_.get();
  } catch (const StorageError& error) {
    removal_fault_ = error.what();
  }
}

std::string CheckpointWriter::take_removal_fault() {
  return std::exchange(removal_fault_, "");
}

void CheckpointWriter::keep_newest(const std::string& directory, int64_t keep) {
  agree_on_root(control_, [&] {
    wait_for_removal();
    RetiredCheckpoints retired =
        retire_all_but_newest(directory, keep, [this] { record().moved(); });
    if (!retired.fault.empty()) removal_fault_ = retired.fault;
    removal_ = std::async(std::launch::async, [this, directories = std::move(retired.directories)] {
      detail::step_back(detail::kWaitingNice);
      remove_retired(directories, [this] { ++removed_files_; });
    });
  });
}

void CheckpointWriter::finish_removal() {
  agree_on_root(control_, [&] { wait_for_removal(); });
}

void CheckpointWriter::starts_from(const WeightsSource& source) {
  const detail::FrozenOrigin& origin = memory_.origin.emplace(engine_.plan(), source);
  if (const auto* checkpoint = dynamic_cast<const CheckpointSource*>(&source))
    memory_.frozen = detail::find_frozen_shard(engine_, origin, *checkpoint);
}

void CheckpointWriter::start(const CheckpointRequest& request) {
  ZEA_ASSERT(!save_);
  agree_on_root(control_, [&] { wait_for_removal(); });
  const Stopwatch clock;
  const std::string final_path = request.directory + "/" + checkpoint_name(request.position.step);
  save_ = std::make_unique<Save>(Save{.request = request,
                                      .final_path = final_path,
                                      .unfinished = final_path + detail::kUnfinishedSuffix,
                                      .frozen_file = frozen_file_name(control_.rank())});
  if (memory_.frozen && memory_.frozen->run_id == request.run_id) save_->frozen = memory_.frozen;
  try {
    if (!is_there_already()) {
      std::vector<detail::OwnPiece> pieces =
          own_pieces(engine_, memory_.origin ? &*memory_.origin : nullptr);
      make_directory_for(pieces);
      start_shard(std::move(pieces));
    }
  } catch (...) {
    save_.reset();
    throw;
  }
  save_->start_seconds = save_->stall_seconds = clock.seconds();
}

bool CheckpointWriter::is_there_already() {
  int32_t is_there = 0;
  agree_on_root(control_, [&] {
    if (!fs::exists(fs::symlink_status(save_->final_path))) return;
    try {
      const CheckpointSource there(save_->final_path);
      is_there = there.manifest().run_id == save_->request.run_id &&
                 there.manifest().position == save_->request.position;
    } catch (const WeightsError&) {
      // A damaged one gets another name.
    }
  });
  control_.broadcast(&is_there, 1, DType::Int32, 0).wait();
  return is_there != 0;
}

void CheckpointWriter::make_directory_for(const std::vector<detail::OwnPiece>& pieces) {
  const auto& frozen = save_->frozen;
  const bool links = frozen && identity_of(frozen->path) == frozen->identity;
  int64_t needed = file_bytes(pieces, !links);
  control_.all_reduce(&needed, 1, DType::Int64, ReduceOp::Sum).wait();
  agree_on_root(control_, [&] {
    const std::string& directory = save_->request.directory;
    make_directory(directory);
    detail::remove_checkpoint(save_->unfinished, [this] { record().moved(); });
    const int64_t free = free_bytes(directory);
    if (free >= 0 && free < needed)
      throw StorageError(directory + ": a checkpoint needs " + std::to_string(needed) +
                         " bytes, free are " + std::to_string(free) +
                         "; make room, lower checkpoint.keep or choose another run.directory");
    make_directory(save_->unfinished);
  });
}

/// Links the frozen file if it can, and else writes its values anew.
void CheckpointWriter::start_shard(std::vector<detail::OwnPiece> pieces) {
  Save& save = *save_;
  if (save.frozen) {
    save.link_error = link_file(save.frozen->path, save.unfinished + "/" + save.frozen_file,
                                save.frozen->identity);
    save.is_linked = save.link_error == 0;
    if (!save.is_linked) save.frozen.reset();
  }
  if (save.is_linked)
    std::erase_if(pieces, [](const detail::OwnPiece& piece) { return !piece.changes; });
  save.shard = std::make_unique<detail::ShardSave>(
      detail::ShardSaveRequest{.directory = save.unfinished,
                               .file = shard_file_name(control_.rank()),
                               .frozen_file = save.frozen_file,
                               .run_id = save.request.run_id,
                               .step = save.request.position.step,
                               .bytes_per_second = save.request.rate_limit_mib * kMiB},
      std::move(pieces), memory_);
}

bool CheckpointWriter::is_writing() const {
  return save_ && (save_->is_writing_file() || is_pending(save_->committed));
}

void CheckpointWriter::snapshot_before_update() {
  if (!save_ || !save_->is_writing_file()) return;
  const Stopwatch clock;
  save_->shard->snapshot_before_update();
  save_->copy_seconds += clock.seconds();
  save_->stall_seconds += clock.seconds();
}

/// Commits in the background: a disk may take long for the few small files that complete a
/// checkpoint.
void CheckpointWriter::begin_commit() {
  Save& save = *save_;
  {
    const ActionRecord::Action action(record(), "write the checkpoint's file");
    save.shard->help([&] { record().moved(); });
    detail::wait_while_slow(
        record(), [&] { return !save.is_writing_file(); },
        [&] { return save.shard->written_bytes(); });
  }
  try {
    agree(control_, [&] { save.shard->finish(); });
    std::vector<std::string> parts =
        gather_texts(control_, text_of_part(engine_.plan().model, own_part()));
    if (control_.rank() == 0)
      save.committed = std::async(std::launch::async, [this, &save, parts = std::move(parts)] {
        detail::step_back(detail::kWaitingNice);
        const Stopwatch clock;
        commit(save, parts);
        return clock.seconds();
      });
  } catch (...) {
    remove_unfinished();
    throw;
  }
  save.has_begun_commit = true;
}

bool CheckpointWriter::advance() {
  ZEA_ASSERT(save_);
  if (!save_->shard || save_->has_begun_commit) return false;
  const Stopwatch clock;
  begin_commit();
  save_->stall_seconds += clock.seconds();
  return true;
}

SaveReport CheckpointWriter::finish() {
  ZEA_ASSERT(save_);
  const Stopwatch clock;
  if (save_->shard) {
    if (!save_->has_begun_commit) begin_commit();
    try {
      agree_on_root(control_, [&] { save_->commit_seconds = save_->committed.get(); });
    } catch (...) {
      remove_unfinished();
      throw;
    }
    if (save_->frozen) save_->frozen->path = save_->final_path + "/" + save_->frozen_file;
    memory_.frozen = save_->frozen;
  }
  save_->stall_seconds += clock.seconds();
  const SaveReport done = report();
  save_.reset();
  return done;
}

/// Returns the files and pieces of this rank, and remembers a frozen file that was written, while
/// the directory has a name that nobody else looks at.
Manifest CheckpointWriter::own_part() {
  Save& save = *save_;
  Manifest part;
  part.pieces = save.shard->finish();
  part.files = save.shard->files();
  if (save.is_linked) {
    part.pieces.insert(part.pieces.end(), save.frozen->pieces.begin(), save.frozen->pieces.end());
    part.files.push_back(save.frozen->file);
  } else if (const auto identity = identity_of(save.unfinished + "/" + save.frozen_file)) {
    save.frozen = {"", save.request.run_id, *identity, part.files.back(), {}};
    for (const Piece& piece : part.pieces)
      if (piece.file == save.frozen_file) save.frozen->pieces.push_back(piece);
  }
  return part;
}

/// A directory that has the final name is damaged or of another history: it is kept under another
/// name.
void CheckpointWriter::commit(const Save& save, const std::vector<std::string>& parts) const {
  Manifest manifest = join_parts(engine_.plan(), parts);
  manifest.run_id = save.request.run_id;
  manifest.position = save.request.position;
  manifest.deck = save.request.deck;
  manifest.job_info = save.request.job_info;
  complete_checkpoint(save.unfinished, std::move(manifest));
  if (fs::exists(fs::symlink_status(save.final_path))) set_aside(save.final_path);
  rename_durably(save.unfinished, save.final_path);
}

/// Ends a save that failed on some rank, when no rank writes any more.
void CheckpointWriter::remove_unfinished() noexcept {
  const std::unique_ptr<Save> save = std::move(save_);
  try {
    if (control_.rank() == 0)
      detail::remove_checkpoint(save->unfinished, [this] { record().moved(); });
  } catch (const std::exception&) {
    // The failure under way says more; the next save of this step tries again.
  }
}

SaveReport CheckpointWriter::report() {
  const Save& save = *save_;
  const detail::ShardSave* const shard = save.shard.get();
  const double writing_seconds = shard ? shard->seconds() : 0;
  double longest[] = {save.start_seconds + writing_seconds,
                      save.commit_seconds,
                      save.stall_seconds,
                      save.copy_seconds,
                      writing_seconds,
                      static_cast<double>(save.link_error)};
  control_.all_reduce(longest, std::size(longest), DType::Float64, ReduceOp::Max).wait();
  int64_t bytes[] = {shard ? shard->bytes() : 0, shard ? shard->kept_bytes() : 0,
                     save.is_linked ? save.frozen->bytes() : 0, shard ? shard->rounded_bytes() : 0};
  control_.all_reduce(bytes, std::size(bytes), DType::Int64, ReduceOp::Sum).wait();
  return {.path = save.final_path,
          .step = save.request.position.step,
          .was_there = !shard,
          .seconds = std::max(longest[0] + longest[1], longest[2]),
          .stall_seconds = longest[2],
          .copy_seconds = longest[3],
          .copied_bytes = bytes[1],
          .bytes = bytes[0],
          .linked_bytes = bytes[2],
          .rounded_bytes = bytes[3],
          .why_not_linked = describe_link_error(static_cast<int>(longest[5])),
          .mib_per_second = longest[4] > 0 ? static_cast<double>(bytes[0]) / kMiB / longest[4] : 0};
}

std::string write_checkpoint(Engine& engine, Collectives& control,
                             const CheckpointRequest& request) {
  CheckpointWriter writer(engine, control);
  writer.start(request);
  return writer.finish().path;
}

}  // namespace zea
