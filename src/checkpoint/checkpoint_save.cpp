// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_save.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "checkpoint/held_boxes.hpp"
#include "checkpoint/save_manifest.hpp"
#include "checkpoint/slow_wait.hpp"
#include "comm/agree.hpp"
#include "core/error.hpp"
#include "files/durable_file.hpp"
#include "io/checkpoint.hpp"
#include "io/retention.hpp"

namespace zea::detail {
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

}  // namespace

CheckpointSave::CheckpointSave(Engine& engine, Collectives& control, SaveMemory& memory,
                               const CheckpointRequest& request)
    : engine_(engine),
      control_(control),
      memory_(memory),
      request_(request),
      final_(request.directory + "/" + checkpoint_name(request.position.step)),
      unfinished_(final_ + kUnfinishedSuffix),
      frozen_file_(frozen_file_name(control.rank())) {
  if (memory.frozen && memory.frozen->run_id == request.run_id) frozen_ = memory.frozen;
}

bool CheckpointSave::is_this_checkpoint() const {
  if (!fs::exists(fs::symlink_status(final_))) return false;
  try {
    const CheckpointSource there(final_);
    return there.manifest().run_id == request_.run_id &&
           there.manifest().position == request_.position;
  } catch (const WeightsError&) {
    return false;
  }
}

bool CheckpointSave::is_done_already() {
  int32_t done = 0;
  agree_on_root(control_, [&] { done = is_this_checkpoint(); });
  control_.broadcast(&done, 1, DType::Int32, 0).wait();
  return done != 0;
}

void CheckpointSave::prepare(const std::vector<OwnPiece>& pieces) {
  const bool links = frozen_ && identity_of(frozen_->path) == frozen_->identity;
  int64_t needed = file_bytes(pieces, !links);
  control_.all_reduce(&needed, 1, DType::Int64, ReduceOp::Sum).wait();
  agree_on_root(control_, [&] {
    make_directory(request_.directory);
    remove_checkpoint(unfinished_, [this] { engine_.mesh().record().moved(); });
    const int64_t free = free_bytes(request_.directory);
    if (free >= 0 && free < needed)
      throw StorageError(request_.directory + ": a checkpoint needs " + std::to_string(needed) +
                         " bytes, free are " + std::to_string(free) +
                         "; make room, lower checkpoint.keep or choose another run.directory");
    make_directory(unfinished_);
  });
}

void CheckpointSave::start_shard(std::vector<OwnPiece> pieces) {
  if (link_frozen()) std::erase_if(pieces, [](const OwnPiece& piece) { return !piece.changes; });
  shard_ = std::make_unique<ShardSave>(
      ShardSaveRequest{.directory = unfinished_,
                       .file = shard_file_name(control_.rank()),
                       .frozen_file = frozen_file_,
                       .run_id = request_.run_id,
                       .step = request_.position.step,
                       .bytes_per_second = request_.rate_limit_mib * kMiB,
                       .stages = request_.stages},
      std::move(pieces), memory_);
}

/// Where that cannot be, for whatever reason, the values are written anew.
bool CheckpointSave::link_frozen() {
  if (!frozen_) return false;
  link_error_ = link_file(frozen_->path, unfinished_ + "/" + frozen_file_, frozen_->identity);
  is_linked_ = link_error_ == 0;
  if (!is_linked_) frozen_.reset();
  return is_linked_;
}

/// Before its directory has a name that others look at.
void CheckpointSave::find_written_frozen() {
  const auto identity = identity_of(unfinished_ + "/" + frozen_file_);
  if (is_linked_ || !identity) return;
  frozen_ = {"", request_.run_id, *identity, shard_->files().back(), {}};
  for (const Piece& piece : shard_->finish())
    if (piece.file == frozen_file_) frozen_->pieces.push_back(piece);
}

void CheckpointSave::start() {
  const Stopwatch clock;
  if (!is_done_already()) {
    std::vector<OwnPiece> pieces = own_pieces(engine_, memory_.origin ? &*memory_.origin : nullptr);
    prepare(pieces);
    start_shard(std::move(pieces));
  }
  start_seconds_ = stall_seconds_ = clock.seconds();
}

void CheckpointSave::keep_values() {
  if (!is_writing_file()) return;
  const Stopwatch clock;
  shard_->keep_values();
  copy_seconds_ += clock.seconds();
  stall_seconds_ += clock.seconds();
}

bool CheckpointSave::is_committing() const {
  return committed_.valid() &&
         committed_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

/// Leaves nothing behind of a save that failed.
template <class Action>
auto CheckpointSave::or_remove(const Action& action) {
  try {
    return action();
  } catch (...) {
    remove_unfinished();
    throw;
  }
}

/// The disk may take long for the few small files that make all others a checkpoint.
void CheckpointSave::begin_commit() {
  wait_for_own_file();
  or_remove([&] {
    agree(control_, [&] { shard_->finish(); });
    find_written_frozen();
    std::vector<std::string> parts = gather_parts(control_, engine_.plan().model, own_part());
    if (control_.rank() == 0)
      committed_ = std::async(std::launch::async, [this, parts = std::move(parts)] {
        step_back(kWaitingNice);
        const Stopwatch clock;
        commit(parts);
        return clock.seconds();
      });
  });
  has_begun_commit_ = true;
}

bool CheckpointSave::advance() {
  if (!shard_ || has_begun_commit_) return false;
  const Stopwatch clock;
  begin_commit();
  stall_seconds_ += clock.seconds();
  return true;
}

SaveReport CheckpointSave::finish() {
  const Stopwatch clock;
  if (shard_) {
    if (!has_begun_commit_) begin_commit();
    or_remove([&] { agree_on_root(control_, [&] { commit_seconds_ = committed_.get(); }); });
    if (frozen_) frozen_->path = final_ + "/" + frozen_file_;
    memory_.frozen = frozen_;
  }
  stall_seconds_ += clock.seconds();
  return report();
}

void CheckpointSave::wait_for_own_file() {
  ActionRecord& record = engine_.mesh().record();
  const ActionRecord::Action action(record, "write the checkpoint's file");
  shard_->help([&] { record.moved(); });
  wait_while_slow(
      record, [&] { return !is_writing_file(); }, [&] { return shard_->written_bytes(); });
}

Manifest CheckpointSave::own_part() const {
  Manifest part;
  part.pieces = shard_->finish();
  part.files = shard_->files();
  if (!is_linked_) return part;
  part.pieces.insert(part.pieces.end(), frozen_->pieces.begin(), frozen_->pieces.end());
  part.files.push_back(frozen_->file);
  return part;
}

void CheckpointSave::commit(const std::vector<std::string>& parts) const {
  Manifest manifest = join_parts(engine_.plan(), parts);
  manifest.run_id = request_.run_id;
  manifest.position = request_.position;
  manifest.deck = request_.deck;
  complete_checkpoint(unfinished_, std::move(manifest));
  make_room();
  rename_durably(unfinished_, final_);
}

/// What has the final name is damaged or of another history: it is kept under another name.
void CheckpointSave::make_room() const {
  if (fs::exists(fs::symlink_status(final_))) set_aside(final_);
}

/// Of a save that failed on some rank, when no rank writes any more.
void CheckpointSave::remove_unfinished() noexcept {
  try {
    if (control_.rank() != 0) return;
    remove_checkpoint(unfinished_, [this] { engine_.mesh().record().moved(); });
  } catch (const std::exception&) {
    // The failure under way says more; the next save of this step tries again.
  }
}

SaveReport CheckpointSave::report() {
  const double writing_seconds = shard_ ? shard_->seconds() : 0;
  double longest[] = {start_seconds_ + writing_seconds,
                      commit_seconds_,
                      stall_seconds_,
                      copy_seconds_,
                      writing_seconds,
                      static_cast<double>(link_error_)};
  control_.all_reduce(longest, std::size(longest), DType::Float64, ReduceOp::Max).wait();
  int64_t bytes[] = {shard_ ? shard_->bytes() : 0, shard_ ? shard_->kept_bytes() : 0,
                     shard_ ? shard_->staged_bytes() : 0, is_linked_ ? frozen_->bytes() : 0,
                     shard_ ? shard_->rounded_bytes() : 0};
  control_.all_reduce(bytes, std::size(bytes), DType::Int64, ReduceOp::Sum).wait();
  return {.path = final_,
          .step = request_.position.step,
          .was_there = !shard_,
          .seconds = std::max(longest[0] + longest[1], longest[2]),
          .stall_seconds = longest[2],
          .copy_seconds = longest[3],
          .copied_bytes = bytes[1] + bytes[2],
          .staged_bytes = bytes[2],
          .bytes = bytes[0],
          .linked_bytes = bytes[3],
          .rounded_bytes = bytes[4],
          .why_not_linked = describe_link_error(static_cast<int>(longest[5])),
          .mib_per_second = longest[4] > 0 ? static_cast<double>(bytes[0]) / kMiB / longest[4] : 0};
}

}  // namespace zea::detail
