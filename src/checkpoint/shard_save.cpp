// SPDX-License-Identifier: Apache-2.0
#include "shard_save.hpp"

#include <algorithm>
#include <new>

#include <unistd.h>

#include "zea/core/error.hpp"

namespace zea::detail {
namespace {

/// Written in one go: large enough for a disk, small enough that training never waits long for its
/// copy. A whole number of hashed blocks.
constexpr int64_t kPartBytes = 2 * kHashBlockBytes;

/// Threads that write parts in turn: one copies and hashes while the disk works for the other.
constexpr int kLanes = 2;

/// Copied in the background in one go: what keep_values() may have to wait for.
constexpr int64_t kStageBytes = 2 << 20;

/// Training comes first.
constexpr int kNice = 10;

/// Of the calling thread alone, and of those that it starts.
void step_back() {
  [[maybe_unused]] const int level = ::nice(kNice);
}

}  // namespace

ShardSave::ShardSave(ShardSaveRequest request, std::vector<OwnPiece> pieces)
    : request_(std::move(request)), snapshot_(std::move(pieces), request_.dtype) {
  if (request_.stages) stager_ = std::thread([this] { stage(); });
  thread_ = std::thread([this] { run(); });
}

ShardSave::~ShardSave() {
  stop();
  if (thread_.joinable()) thread_.join();
}

void ShardSave::run() {
  step_back();
  try {
    write_all();
  } catch (...) {
    failure_ = std::current_exception();
    stop();
  }
  if (stager_.joinable()) stager_.join();
  snapshot_.release();
  seconds_ = elapsed_seconds();
  done_ = true;
}

void ShardSave::stage() {
  step_back();
  try {
    while (!is_stopped() && snapshot_.stage(kStageBytes)) std::this_thread::yield();
  } catch (const std::bad_alloc&) {
    // No room to copy ahead: the writer may be done before anything has to be copied at all.
  }
}

void ShardSave::write_all() {
  ShardWriter writer(request_.directory, request_.file, request_.run_id, request_.step);
  for (const OwnPiece& source : snapshot_.pieces())
    pieces_.push_back(writer.begin(source.param->name, source.state, source.param->shape,
                                   source.extent, request_.dtype));
  write_in_lanes(writer);
  writer.finish();
}

void ShardSave::write_in_lanes(ShardWriter& writer) {
  std::exception_ptr failures[kLanes];
  const auto lane = [&](int number) {
    try {
      write_parts(writer);
    } catch (...) {
      failures[number] = std::current_exception();
      stop();
    }
  };
  std::vector<std::thread> others;
  for (int number = 1; number < kLanes; ++number) others.emplace_back(lane, number);
  lane(0);
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  if (!wait_until(0)) throw StorageError(request_.directory + ": the save was given up");
}

void ShardSave::write_parts(ShardWriter& writer) {
  const PageMemory buffer(kPartBytes);
  const auto size = static_cast<int64_t>(element_bytes(request_.dtype));
  for (ValueSnapshot::Part part;
       !is_stopped() && snapshot_.take(part, kPartBytes, buffer.data());) {
    const double start_seconds = book(part.count * size);
    Piece& piece = pieces_[part.piece];
    hash_part(piece, part.first, part.count, buffer.data());
    if (!wait_until(start_seconds)) return;
    writer.write(piece, part.first, part.count, buffer.data());
    written_bytes_ += part.count * size;
  }
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

void ShardSave::stop() {
  const std::lock_guard lock(mutex_);
  is_stopped_ = true;
  stopping_.notify_all();
}

/// False when writing was stopped meanwhile.
bool ShardSave::wait_until(double seconds) {
  std::unique_lock lock(mutex_);
  const auto time = start_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                 std::chrono::duration<double>(seconds));
  stopping_.wait_until(lock, time, [this] { return is_stopped_; });
  return !is_stopped_;
}

double ShardSave::elapsed_seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace zea::detail
