// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shard_save.hpp"

#include <algorithm>

#include <unistd.h>

#include "core/error.hpp"

namespace zea::detail {
namespace {

/// Written in one go: large enough for a disk, small enough that training never waits long for its
/// copy. A whole number of hashed blocks.
constexpr int64_t kPartBytes = 2 * kHashBlockBytes;

/// Threads that write parts in turn: one copies and hashes while the disk works for the other.
constexpr int kLanes = 2;

/// Threads that move many bytes get the least share of a core that is never nothing. What is idle
/// is theirs.
constexpr int kLowestNice = 19;
constexpr int64_t kManyBytes = 64 << 20;

}  // namespace

void step_back(int levels) {
  [[maybe_unused]] const int level = ::nice(levels);
}

/// The files under construction. Several threads may write.
class ShardSave::Files {
 public:
  Files(const ShardSaveRequest& request, const std::vector<OwnPiece>& pieces)
      : changing_(request.directory, request.file, request.run_id, request.step) {
    if (!pieces.empty() && !pieces.back().changes)
      frozen_.emplace(request.directory, request.frozen_file, request.run_id, kEveryStep);
  }

  Piece begin(const OwnPiece& source) {
    ShardWriter& writer = source.changes ? changing_ : *frozen_;
    return writer.begin(source.param->name, source.state,
                        in_blocks(source.param->tensor_shape(), source.elements_of_each),
                        source.extent, source.dtype, source.elements_of_each);
  }

  void write(bool changes, const Piece& piece, const ValueSnapshot::Part& part) {
    (changes ? changing_ : *frozen_).write(piece, part.first, part.count, part.data);
  }

  std::vector<ManifestFile> finish() {
    changing_.finish();
    std::vector<ManifestFile> entries = {changing_.file()};
    if (!frozen_) return entries;
    frozen_->finish();
    entries.push_back(frozen_->file());
    return entries;
  }

 private:
  ShardWriter changing_;
  std::optional<ShardWriter> frozen_;
};

ShardSave::ShardSave(ShardSaveRequest request, std::vector<OwnPiece> pieces, SaveMemory& memory)
    : request_(std::move(request)),
      memory_(memory),
      snapshot_(std::move(pieces), kHashBlockBytes, memory.copies,
                memory.origin ? &*memory.origin : nullptr) {
  memory_.parts.resize(kLanes + 1);
  thread_ = std::thread([this] { run(); });
}

ShardSave::~ShardSave() {
  stop();
  if (thread_.joinable()) thread_.join();
}

void ShardSave::run() {
  step_back(kWaitingNice);
  try {
    write_all();
  } catch (...) {
    stop(std::current_exception());
  }
  snapshot_.release();
  for (const PageMemory& part : memory_.parts) part.offer(0, part.bytes());
  seconds_ = elapsed_seconds();
  done_ = true;
}

int ShardSave::further_back() const {
  return bytes() < kManyBytes ? 0 : kLowestNice - kWaitingNice;
}

void ShardSave::write_all() {
  Files files(request_, snapshot_.pieces());
  for (const OwnPiece& source : snapshot_.pieces()) pieces_.push_back(files.begin(source));
  write_in_lanes(files);
  if (!wait_until(0)) throw StorageError(request_.directory + ": the save was given up");
  entries_ = files.finish();
}

/// On return nobody uses the files.
void ShardSave::write_in_lanes(Files& files) {
  {
    const std::lock_guard lock(mutex_);
    files_ = &files;
    changed_.notify_all();
  }
  std::vector<std::jthread> lanes;
  try {
    for (int lane = 0; lane < kLanes; ++lane)
      lanes.emplace_back([this, &files, lane] {
        step_back(further_back());
        write_lane(files, lane);
      });
  } catch (...) {  // no thread to be had
    stop(std::current_exception());
  }
  lanes.clear();  // joins
  std::unique_lock lock(mutex_);
  files_ = nullptr;
  changed_.wait(lock, [this] { return !is_helped_; });
}

void ShardSave::write_lane(Files& files, int lane, const std::function<void()>& moved) {
  try {
    write_parts(files, memory_.parts[static_cast<size_t>(lane)], moved);
  } catch (...) {
    stop(std::current_exception());
  }
}

void ShardSave::write_parts(Files& files, PageMemory& buffer, const std::function<void()>& moved) {
  if (buffer.bytes() < kPartBytes) buffer = PageMemory(kPartBytes);
  for (ValueSnapshot::Part part;
       !is_stopped() && snapshot_.take(part, kPartBytes, buffer.data());) {
    Piece& piece = pieces_[part.piece];
    const int64_t bytes = part.count * static_cast<int64_t>(element_bytes(piece.dtype));
    const double start_seconds = book(bytes);
    hash_part(piece, part.first, part.count, part.data);
    if (!wait_until(start_seconds)) return;
    files.write(snapshot_.pieces()[part.piece].changes, piece, part);
    snapshot_.give_back(part);
    written_bytes_ += bytes;
    if (moved) moved();
  }
}

void ShardSave::help(const std::function<void()>& moved) {
  if (request_.bytes_per_second > 0) return;
  Files* files = join_writers();
  if (files == nullptr) return;
  write_lane(*files, kLanes, moved);
  const std::lock_guard lock(mutex_);
  is_helped_ = false;
  changed_.notify_all();
}

/// Null when there is nothing to help with any more.
ShardSave::Files* ShardSave::join_writers() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return files_ || is_stopped_ || written_bytes_ == bytes(); });
  is_helped_ = files_ && !is_stopped_;
  return is_helped_ ? files_ : nullptr;
}

/// When the rate limit lets the next so many bytes go, in seconds since the start.
double ShardSave::book(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const double start_seconds = allowed_seconds_;
  if (request_.bytes_per_second > 0)
    allowed_seconds_ = std::max(allowed_seconds_, elapsed_seconds()) +
                       static_cast<double>(bytes) / request_.bytes_per_second;
  return start_seconds;
}

const std::vector<Piece>& ShardSave::finish() {
  if (thread_.joinable()) thread_.join();
  if (failure_) std::rethrow_exception(failure_);
  return pieces_;
}

bool ShardSave::is_stopped() {
  const std::lock_guard lock(mutex_);
  return is_stopped_;
}

void ShardSave::stop(std::exception_ptr why) {
  const std::lock_guard lock(mutex_);
  is_stopped_ = true;
  if (!failure_) failure_ = std::move(why);
  changed_.notify_all();
}

/// False when writing was stopped meanwhile.
bool ShardSave::wait_until(double seconds) {
  std::unique_lock lock(mutex_);
  const auto time = start_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                 std::chrono::duration<double>(seconds));
  changed_.wait_until(lock, time, [this] { return is_stopped_; });
  return !is_stopped_;
}

double ShardSave::elapsed_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace zea::detail
