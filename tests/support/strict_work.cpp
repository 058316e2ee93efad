// SPDX-License-Identifier: Apache-2.0
#include "support/strict_work.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "core/error.hpp"
#include "support/roll_call.hpp"

namespace zea {
namespace {

// All bits set: NaN in every floating type, -1 in signed integers.
constexpr int kPoison = 0xff;

}  // namespace

StrictWork::StrictWork(std::string what, std::shared_ptr<StrictState> state)
    : what_(std::move(what)), state_(std::move(state)) {}

StrictWork::~StrictWork() {
  for (const auto memory : used_) state_->used.erase(memory);
  if (!finished_ && std::uncaught_exceptions() == 0)
    state_->faults.push_back(what_ + " was dropped without being waited for");
}

/// Several calls may read the same memory, but only one call may receive into it, without readers.
void StrictWork::use(const void* data, size_t bytes, bool is_received) {
  if (bytes == 0) return;
  const auto* begin = static_cast<const std::byte*>(data);
  const auto is_own = [this](const UsedMemory& memory) {
    return std::ranges::any_of(used_, [&](const auto& own) { return &*own == &memory; });
  };
  for (const UsedMemory& other : state_->used)
    if ((is_received || other.is_received) && begin < other.begin + other.bytes &&
        other.begin < begin + bytes && !is_own(other))
      throw CommError(what_ + " uses memory of " + other.call + ", which is in progress");
  used_.push_back(state_->used.insert(state_->used.end(), {begin, bytes, is_received, what_}));
}

void* StrictWork::hide(void* target, size_t bytes, const void* keep, size_t keep_bytes) {
  use(target, bytes, true);
  auto arrived = std::make_unique_for_overwrite<std::byte[]>(bytes);
  void* place = arrived.get();
  if (bytes > 0) std::memcpy(place, target, bytes);
  std::unique_ptr<std::byte[]> kept;
  if (keep_bytes > 0) {
    kept = std::make_unique_for_overwrite<std::byte[]>(keep_bytes);
    std::memcpy(kept.get(), keep, keep_bytes);
  }
  if (bytes > 0) std::memset(target, kPoison, bytes);
  if (keep_bytes > 0) std::memcpy(const_cast<void*>(keep), kept.get(), keep_bytes);
  hidden_.push_back({std::move(arrived), target, bytes, hash_bytes(target, bytes)});
  return place;
}

void StrictWork::watch(const void* data, size_t bytes) {
  use(data, bytes, false);
  watched_.push_back({data, bytes, hash_bytes(data, bytes)});
}

void StrictWork::wait() {
  if (finished_) return;
  if (!state_->progress->wait_until([this] { return test_inner(); }, state_->patience))
    throw CommError(what_ + " is not answered within " + std::to_string(state_->patience.count()) +
                    " ms");
  finish();
}

bool StrictWork::test() {
  if (!finished_ && test_inner()) finish();
  return finished_;
}

bool StrictWork::test_inner() {
  bool done = true;
  for (Pending& part : inner_) done = part.test() && done;
  return done;
}

void StrictWork::finish() {
  finished_ = true;
  for (const Watched& sent : watched_)
    if (hash_bytes(sent.data, sent.bytes) != sent.hash)
      throw CommError("the buffer that " + what_ + " sends was changed before it was waited for");
  for (const auto memory : used_) state_->used.erase(memory);
  used_.clear();
  for (const Hidden& hidden : hidden_)
    if (hash_bytes(hidden.target, hidden.bytes) != hidden.hash)
      throw CommError("the buffer into which " + what_ +
                      " receives was changed before it was waited for");
  for (const Hidden& hidden : hidden_)
    if (hidden.bytes > 0) std::memcpy(hidden.target, hidden.arrived.get(), hidden.bytes);
}

}  // namespace zea
