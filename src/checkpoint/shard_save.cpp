// SPDX-License-Identifier: Apache-2.0
#include "shard_save.hpp"

#include <algorithm>

#include "zea/core/error.hpp"
#include "zea/parallel/sharded_group.hpp"

namespace zea::detail {
namespace {

/// Written in one go: large enough for a disk, small enough that training never waits long for its
/// copy. A whole number of hashed blocks.
constexpr int64_t kPartBytes = 2 * kHashBlockBytes;

/// Threads that write parts in turn: one copies and hashes while the disk works for the other.
constexpr int kLanes = 2;

at::Tensor on_host(char* memory, int64_t elements, DType dtype) {
  return at::from_blob(memory, {elements}, at::TensorOptions(to_torch(dtype)));
}

}  // namespace

ShardSave::ShardSave(ShardSaveRequest request, std::vector<OwnPiece> pieces)
    : request_(std::move(request)), sources_(std::move(pieces)), source_first_(sources_.size(), 0) {
  for (const OwnPiece& piece : sources_)
    bytes_ += ShardWriter::piece_bytes(piece.extent, request_.dtype);
  thread_ = std::thread([this] { run(); });
}

ShardSave::~ShardSave() {
  stop();
  if (thread_.joinable()) thread_.join();
}

void ShardSave::run() {
  try {
    write_all();
  } catch (...) {
    failure_ = std::current_exception();
  }
  seconds_ = elapsed_seconds();
  done_ = true;
}

void ShardSave::write_all() {
  ShardWriter writer(request_.directory, request_.file, request_.run_id, request_.step);
  for (const OwnPiece& source : sources_)
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
  for (Part part; take_part(part, buffer.data());) {
    Piece& piece = pieces_[part.piece];
    hash_part(piece, part.first, part.count, buffer.data());
    if (!wait_until(part.start_seconds)) return;
    writer.write(piece, part.first, part.count, buffer.data());
  }
}

/// Copies the next part into `target`; false when there is none, or no need for it any more.
bool ShardSave::take_part(Part& part, char* target) {
  const std::lock_guard lock(mutex_);
  if (is_stopped_ || next_piece_ == sources_.size()) return false;
  const OwnPiece& source = sources_[next_piece_];
  const auto size = static_cast<int64_t>(element_bytes(request_.dtype));
  const int64_t elements = source.extent.elements();
  part = {next_piece_, next_element_, std::min(kPartBytes / size, elements - next_element_),
          allowed_seconds_};
  on_host(target, part.count, request_.dtype)
      .copy_(source.values.narrow(0, part.first - source_first_[part.piece], part.count));
  next_element_ += part.count;
  if (next_element_ == elements) ++next_piece_, next_element_ = 0;
  if (request_.bytes_per_second > 0)
    allowed_seconds_ = std::max(allowed_seconds_, elapsed_seconds()) +
                       static_cast<double>(part.count * size) / request_.bytes_per_second;
  return true;
}

void ShardSave::keep_values() {
  const std::lock_guard lock(mutex_);
  if (is_kept_ || is_stopped_ || done_) return;
  is_kept_ = true;
  const auto size = static_cast<int64_t>(element_bytes(request_.dtype));
  const auto left = [&](size_t p) {
    const int64_t taken = p == next_piece_ ? next_element_ : 0;
    return sources_[p].changes ? sources_[p].extent.elements() - taken : 0;
  };
  int64_t elements = 0;
  for (size_t p = next_piece_; p < sources_.size(); ++p) elements += left(p);
  kept_ = PageMemory(elements * size);
  char* target = kept_.data();
  for (size_t p = next_piece_; p < sources_.size(); ++p) {
    const int64_t count = left(p);
    if (count == 0) continue;
    const at::Tensor copy = on_host(target, count, request_.dtype);
    copy.copy_(sources_[p].values.slice(0, sources_[p].values.numel() - count));
    sources_[p].values = copy;
    source_first_[p] = sources_[p].extent.elements() - count;
    target += count * size;
  }
}

const std::vector<Piece>& ShardSave::finish() {
  if (thread_.joinable()) thread_.join();
  if (failure_) std::rethrow_exception(failure_);
  return pieces_;
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
