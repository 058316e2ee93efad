// SPDX-License-Identifier: Apache-2.0
#include "zea/checkpoint/checkpoint_writer.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "checkpoint_directory.hpp"
#include "frozen_shard.hpp"
#include "own_pieces.hpp"
#include "shard_save.hpp"
#include "zea/checkpoint/agree.hpp"
#include "zea/checkpoint/retention.hpp"
#include "zea/core/error.hpp"
#include "zea/core/stopwatch.hpp"
#include "zea/io/checkpoint_list.hpp"
#include "zea/io/checkpoint_source.hpp"
#include "zea/io/durable_file.hpp"
#include "zea/plan/module_mesh.hpp"

namespace zea {
namespace {

namespace fs = std::filesystem;

constexpr double kMiB = 1 << 20;

/// Of threads that mostly wait for the disk: one deletes old checkpoints, one makes files a new
/// one.
constexpr int kWaitingNice = 10;

std::string describe_module(const Plan& plan, const ModuleGrid& grid) {
  std::string text = grid.module + " " + mesh_of(plan.options, grid.module).strategy;
  if (grid.pp > 1) text += " pp " + std::to_string(grid.pp);
  if (grid.tp > 1) text += " tp " + std::to_string(grid.tp);
  if (grid.cp > 1) text += " cp " + std::to_string(grid.cp);
  return text;
}

std::string describe_mesh(const Plan& plan) {
  std::string text = "dp_replicate " + std::to_string(plan.mesh.dp_replicate) + " x dp_shard " +
                     std::to_string(plan.mesh.dp_shard);
  for (const ModuleGrid& grid : plan.mesh.modules) text += ", " + describe_module(plan, grid);
  return text;
}

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

/// What the device was told to do with the shards is done on return: the writing thread, which
/// has a queue of its own there, sees its results.
void wait_for_device(const std::vector<detail::OwnPiece>& pieces) {
  for (const detail::OwnPiece& piece : pieces) {
    if (piece.values.is_cpu()) continue;
    piece.values.narrow(0, 0, 1).to(at::kCPU);
    return;
  }
}

}  // namespace

/// One save, from the first look at the directory to the final name.
class CheckpointWriter::Save {
 public:
  Save(Engine& engine, Collectives& control, detail::SaveMemory& memory,
       const CheckpointRequest& request)
      : engine_(engine),
        control_(control),
        memory_(memory),
        request_(request),
        final_(request.directory + "/" + checkpoint_name(request.position.step)),
        unfinished_(final_ + detail::kUnfinishedSuffix),
        frozen_file_(frozen_file_name(control.rank())) {
    if (memory.frozen && memory.frozen->run_id == request.run_id) frozen_ = memory.frozen;
  }

  void start();
  bool is_writing() const { return is_writing_file() || is_committing(); }
  void keep_values();
  bool advance();
  SaveReport finish();

 private:
  bool is_writing_file() const { return shard_ && !shard_->is_done(); }
  bool is_committing() const;
  bool is_this_checkpoint() const;
  template <class Action>
  auto or_remove(const Action& action);
  void begin_commit();
  void wait_for_own_file();
  bool is_done_already();
  void prepare();
  void start_shard();
  bool link_frozen();
  void find_written_frozen();
  std::string own_part() const;
  std::vector<std::string> gather_to_root(const std::string& own);
  Manifest make_manifest(const std::vector<std::string>& parts) const;
  void commit(const std::vector<std::string>& parts) const;
  void make_room() const;
  void remove_unfinished() noexcept;
  SaveReport report();

  Engine& engine_;
  Collectives& control_;
  detail::SaveMemory& memory_;
  const CheckpointRequest request_;
  std::string final_, unfinished_, frozen_file_;
  std::unique_ptr<detail::ShardSave> shard_;  ///< null where the checkpoint is there already
  /// What may be linked, then what was, or was written in its place.
  std::optional<detail::FrozenShard> frozen_;
  bool is_linked_ = false;
  int link_error_ = 0;  ///< errno
  bool has_begun_commit_ = false;
  std::future<void> committed_;  ///< on the root
  Stopwatch clock_;
  double stall_seconds_ = 0, copy_seconds_ = 0;
};

bool CheckpointWriter::Save::is_this_checkpoint() const {
  if (!fs::exists(fs::symlink_status(final_))) return false;
  try {
    const CheckpointSource there(final_);
    return there.manifest().run_id == request_.run_id &&
           there.manifest().position == request_.position;
  } catch (const WeightsError&) {
    return false;
  }
}

bool CheckpointWriter::Save::is_done_already() {
  int32_t done = 0;
  agree_on_root(control_, [&] { done = is_this_checkpoint(); });
  control_.broadcast(&done, 1, DType::Int32, 0).wait();
  return done != 0;
}

void CheckpointWriter::Save::prepare() {
  const bool links = frozen_ && identity_of(frozen_->path) == frozen_->identity;
  int64_t needed = detail::own_file_bytes(engine_, !links);
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

void CheckpointWriter::Save::start_shard() {
  std::vector<detail::OwnPiece> pieces = detail::own_pieces(engine_);
  if (link_frozen())
    std::erase_if(pieces, [](const detail::OwnPiece& piece) { return !piece.changes; });
  wait_for_device(pieces);
  shard_ = std::make_unique<detail::ShardSave>(
      detail::ShardSaveRequest{.directory = unfinished_,
                               .file = shard_file_name(control_.rank()),
                               .frozen_file = frozen_file_,
                               .run_id = request_.run_id,
                               .step = request_.position.step,
                               .dtype = engine_.plan().precision.master,
                               .bytes_per_second = request_.rate_limit_mib * kMiB,
                               .stages = request_.stages},
      std::move(pieces), memory_);
}

/// Where that cannot be, for whatever reason, the values are written anew.
bool CheckpointWriter::Save::link_frozen() {
  if (!frozen_) return false;
  link_error_ = link_file(frozen_->path, unfinished_ + "/" + frozen_file_, frozen_->identity);
  is_linked_ = link_error_ == 0;
  if (!is_linked_) frozen_.reset();
  return is_linked_;
}

/// Before its directory has a name that others look at.
void CheckpointWriter::Save::find_written_frozen() {
  const auto identity = identity_of(unfinished_ + "/" + frozen_file_);
  if (is_linked_ || !identity) return;
  frozen_ = {"", request_.run_id, *identity, {}};
  for (const Piece& piece : shard_->finish())
    if (piece.file == frozen_file_) frozen_->pieces.push_back(piece);
}

void CheckpointWriter::Save::start() {
  if (!is_done_already()) {
    prepare();
    start_shard();
  }
  stall_seconds_ = clock_.seconds();
}

void CheckpointWriter::Save::keep_values() {
  if (!is_writing_file()) return;
  const Stopwatch clock;
  shard_->keep_values();
  copy_seconds_ += clock.seconds();
  stall_seconds_ += clock.seconds();
}

bool CheckpointWriter::Save::is_committing() const {
  return committed_.valid() &&
         committed_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

/// Leaves nothing behind of a save that failed.
template <class Action>
auto CheckpointWriter::Save::or_remove(const Action& action) {
  try {
    return action();
  } catch (...) {
    remove_unfinished();
    throw;
  }
}

/// The disk may take long for the few small files that make all others a checkpoint.
void CheckpointWriter::Save::begin_commit() {
  wait_for_own_file();
  or_remove([&] {
    agree(control_, [&] { shard_->finish(); });
    find_written_frozen();
    std::vector<std::string> parts = gather_to_root(own_part());
    if (control_.rank() == 0)
      committed_ = std::async(std::launch::async, [this, parts = std::move(parts)] {
        detail::step_back(kWaitingNice);
        commit(parts);
      });
  });
  has_begun_commit_ = true;
}

bool CheckpointWriter::Save::advance() {
  if (!shard_ || has_begun_commit_) return false;
  const Stopwatch clock;
  begin_commit();
  stall_seconds_ += clock.seconds();
  return true;
}

SaveReport CheckpointWriter::Save::finish() {
  const Stopwatch clock;
  if (shard_) {
    if (!has_begun_commit_) begin_commit();
    or_remove([&] { agree_on_root(control_, [&] { committed_.get(); }); });
    if (frozen_) frozen_->path = final_ + "/" + frozen_file_;
    memory_.frozen = frozen_;
  }
  stall_seconds_ += clock.seconds();
  return report();
}

/// A file that grows is slow, not stuck.
void CheckpointWriter::Save::wait_for_own_file() {
  ActionRecord& record = engine_.mesh().record();
  const ActionRecord::Action action(record, "write the checkpoint's file");
  shard_->help([&] { record.moved(); });
  for (int64_t written = 0; is_writing_file();) {
    if (written != shard_->written_bytes()) record.moved();
    written = shard_->written_bytes();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// A rank's pieces travel as a manifest of their own, so the root reads them with the checks of a
/// manifest.
std::string CheckpointWriter::Save::own_part() const {
  Manifest part;
  part.files = {shard_file_name(control_.rank())};
  part.pieces = shard_->finish();
  if (is_linked_)
    part.pieces.insert(part.pieces.end(), frozen_->pieces.begin(), frozen_->pieces.end());
  if (!part.pieces.empty() && part.pieces.back().file == frozen_file_)
    part.files.push_back(frozen_file_);
  std::map<std::string, Shape> shapes;
  for (const FlatGroup& group : engine_.plan().groups)
    for (const FlatParam& member : group.params) {
      const ParamSpec& param = engine_.plan().model.params[member.param];
      shapes[param.name] = param.shape;
    }
  std::set<std::string> named;
  for (const Piece& piece : part.pieces)
    if (named.insert(piece.tensor).second)
      part.tensors.push_back({piece.tensor, shapes.at(piece.tensor), piece.dtype, false});
  return manifest_text(part);
}

std::vector<std::string> CheckpointWriter::Save::gather_to_root(const std::string& own) {
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

Manifest CheckpointWriter::Save::make_manifest(const std::vector<std::string>& parts) const {
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

void CheckpointWriter::Save::commit(const std::vector<std::string>& parts) const {
  const Manifest manifest = make_manifest(parts);
  check_coverage(manifest);
  write_virtual_model(unfinished_, manifest);
  write_text_durably(unfinished_ + "/" + kManifestFile, manifest_text(manifest));
  make_room();
  rename_durably(unfinished_, final_);
}

/// What has the final name is damaged or of another history: it is kept under another name.
void CheckpointWriter::Save::make_room() const {
  if (fs::exists(fs::symlink_status(final_))) set_aside(final_);
}

/// Of a save that failed on some rank, when no rank writes any more.
void CheckpointWriter::Save::remove_unfinished() noexcept {
  try {
    if (control_.rank() == 0) detail::remove_checkpoint(unfinished_);
  } catch (const std::exception&) {
    // The failure under way says more; the next save of this step tries again.
  }
}

SaveReport CheckpointWriter::Save::report() {
  double longest[] = {clock_.seconds(), stall_seconds_, copy_seconds_,
                      shard_ ? shard_->seconds() : 0, static_cast<double>(link_error_)};
  control_.all_reduce(longest, std::size(longest), DType::Float64, ReduceOp::Max).wait();
  int64_t bytes[] = {shard_ ? shard_->bytes() : 0, shard_ ? shard_->kept_bytes() : 0,
                     shard_ ? shard_->staged_bytes() : 0, is_linked_ ? frozen_->bytes() : 0};
  control_.all_reduce(bytes, std::size(bytes), DType::Int64, ReduceOp::Sum).wait();
  return {.path = final_,
          .step = request_.position.step,
          .was_there = !shard_,
          .seconds = longest[0],
          .stall_seconds = longest[1],
          .copy_seconds = longest[2],
          .copied_bytes = bytes[1] + bytes[2],
          .staged_bytes = bytes[2],
          .bytes = bytes[0],
          .linked_bytes = bytes[3],
          .why_not_linked = describe_link_error(static_cast<int>(longest[4])),
          .mib_per_second = longest[3] > 0 ? static_cast<double>(bytes[0]) / kMiB / longest[3] : 0};
}

CheckpointWriter::CheckpointWriter(Engine& engine, Collectives& control)
    : engine_(engine), control_(control), memory_(std::make_unique<detail::SaveMemory>()) {
  ZEA_ASSERT(control.rank() == engine.world_rank() && control.size() == engine.plan().world_size());
}

CheckpointWriter::~CheckpointWriter() = default;

/// On the root: its room may be needed, and its names.
void CheckpointWriter::wait_for_removal() {
  if (removal_.valid()) removal_.get();
}

void CheckpointWriter::keep_newest(const std::string& directory, int64_t keep) {
  agree_on_root(control_, [&] {
    wait_for_removal();
    removal_ = std::async(std::launch::async, [retired = retire_all_but_newest(directory, keep)] {
      detail::step_back(kWaitingNice);
      remove_retired(retired);
    });
  });
}

void CheckpointWriter::goes_on_from(const StateSource& source) {
  if (const auto* checkpoint = dynamic_cast<const CheckpointSource*>(&source))
    memory_->frozen = detail::find_frozen_shard(engine_, *checkpoint);
}

void CheckpointWriter::start(const CheckpointRequest& request) {
  ZEA_ASSERT(!save_);
  agree_on_root(control_, [&] { wait_for_removal(); });
  auto save = std::make_unique<Save>(engine_, control_, *memory_, request);
  save->start();
  save_ = std::move(save);
}

bool CheckpointWriter::is_writing() const {
  return save_ && save_->is_writing();
}

void CheckpointWriter::keep_values() {
  if (save_) save_->keep_values();
}

bool CheckpointWriter::advance() {
  ZEA_ASSERT(save_);
  std::unique_ptr<Save> save = std::move(save_);  // gone where this throws
  const bool has_more = save->advance();
  save_ = std::move(save);
  return has_more;
}

SaveReport CheckpointWriter::finish() {
  ZEA_ASSERT(save_);
  const std::unique_ptr<Save> save = std::move(save_);
  return save->finish();
}

std::string write_checkpoint(Engine& engine, Collectives& control,
                             const CheckpointRequest& request) {
  CheckpointWriter writer(engine, control);
  writer.start(request);
  return writer.finish().path;
}

}  // namespace zea
