// SPDX-License-Identifier: Apache-2.0
#include "comm/node/node_work.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace zea {
namespace {

using Stage = NodeBoard::Stage;

/// Results are copied to the peers' buffers in blocks that are still in the cache.
constexpr int64_t kBlockBytes = 16 << 10;

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

NodeWork::NodeWork(std::shared_ptr<Progress> progress, std::shared_ptr<NodeBoard> board,
                   NodeCall call, SharedAddress shared)
    : progress_(std::move(progress)),
      board_(std::move(board)),
      call_(std::move(call)),
      shared_(std::move(shared)),
      number_(board_->next_call()) {
  if (!is_small()) ticket_ = board_->take_ticket();
  while (step()) continue;
  if (state_ != State::Done) progress_->add(this);
}

NodeWork::~NodeWork() {
  if (state_ == State::Done) return;
  if (std::uncaught_exceptions() == 0) wait();
  progress_->remove(this);
}

void NodeWork::wait() {
  if (state_ != State::Done) progress_->wait_until([this] { return state_ == State::Done; });
}

bool NodeWork::test() {
  if (state_ != State::Done) progress_->poll();
  return state_ == State::Done;
}

bool NodeWork::advance() noexcept {
  bool moved = false;
  while (step()) moved = true;
  if (state_ == State::Done) progress_->remove(this);
  return moved || std::exchange(relay_moved_, false);
}

bool NodeWork::step() {
  switch (state_) {
    case State::NoSlot:
      return announce();
    case State::Small:
      return finish_small();
    case State::Queued:
      return choose_way();
    case State::Passing:
      return pass();
    case State::Draining:
      if (!board_->have_all_reached(number_, Stage::Finished)) return false;
      state_ = State::Done;
      return true;
    case State::Done:
      return false;
  }
  return false;
}

bool NodeWork::announce() {
  if (!board_->has_slot(number_)) return false;
  if (is_small()) {
    copy_bytes(board_->payload(board_->rank(), number_), call_.send, own_bytes());
    state_ = State::Small;
  } else {
    NodeBoard::Address address;
    if (shared_.memory) address = {shared_.memory->id(), shared_.offset};
    board_->describe(number_, address);
    state_ = State::Queued;
  }
  board_->raise(number_, Stage::Arrived);
  return true;
}

bool NodeWork::finish_small() {
  if (!board_->have_all_reached(number_, Stage::Arrived)) return false;
  std::vector<const std::byte*> payloads;
  for (int r = 0; r < board_->size(); ++r) payloads.push_back(board_->payload(r, number_));
  const int rank = board_->rank();
  if (call_.reduces && call_.gathers) {
    reduce_range(call_, payloads, 0, call_.begins.back(), call_.receive);
  } else if (call_.reduces) {
    reduce_range(call_, payloads, call_.begins[rank], call_.elements(rank), call_.receive);
  } else {
    for (int r = 0; r < board_->size(); ++r)
      copy_bytes(call_.receive + call_.begin_bytes(r), payloads[r], call_.bytes(r));
  }
  board_->raise(number_, Stage::Finished);
  state_ = State::Done;
  return true;
}

// A rank whose peers cannot reach its buffer knows the way at once; the others learn it from all.
bool NodeWork::choose_way() {
  if (!board_->has_turn(ticket_)) return false;
  if (shared_.memory) {
    if (!board_->have_all_reached(number_, Stage::Arrived)) return false;
    if (can_all_reach()) {
      work_in_place();
      end_own_part(State::Draining);
      return true;
    }
  }
  relay_.emplace(*board_, call_);
  if (!call_.reduces)
    copy_bytes(call_.receive + call_.begin_bytes(board_->rank()), call_.send, own_bytes());
  state_ = State::Passing;
  return true;
}

bool NodeWork::pass() {
  relay_moved_ = relay_->advance() || relay_moved_;
  if (!relay_->is_done()) return false;
  end_own_part(State::Done);
  return true;
}

void NodeWork::end_own_part(State next) {
  board_->raise(number_, Stage::Finished);
  board_->end_turn();
  state_ = next;
}

// Buffers in different memories count as out of reach: a peer may have freed the one that this rank
// uses.
bool NodeWork::can_all_reach() const {
  for (int r = 0; r < board_->size(); ++r)
    if (board_->address(r, number_).memory != shared_.memory->id()) return false;
  return true;
}

void NodeWork::work_in_place() const {
  std::vector<std::byte*> buffers;
  for (int r = 0; r < board_->size(); ++r)
    buffers.push_back(shared_.memory->data(r) + board_->address(r, number_).offset);
  if (call_.reduces)
    reduce_in_place(buffers);
  else
    gather_in_place(buffers);
}

// The blocks just read are in the cache, so writing the result into all buffers costs less than
// peers coming to fetch it.
void NodeWork::reduce_in_place(const std::vector<std::byte*>& buffers) const {
  const int rank = board_->rank();
  const std::vector<const std::byte*> parts(buffers.begin(), buffers.end());
  const int64_t block = kBlockBytes / call_.width();
  const int64_t end = call_.begins[rank + 1];
  const int64_t wide = call_.keeps_wide ? int64_t{sizeof(float)} : call_.width();
  for (int64_t first = call_.begins[rank]; first < end; first += block) {
    const int64_t count = std::min(block, end - first);
    std::byte* result = call_.gathers ? buffers[rank] + first * call_.width()
                                      : call_.receive + (first - call_.begins[rank]) * wide;
    reduce_range(call_, parts, first, count, result);
    for (int r = 0; call_.gathers && r < board_->size(); ++r)
      copy_bytes(buffers[r] + first * call_.width(), result, count * call_.width());
  }
}

void NodeWork::gather_in_place(const std::vector<std::byte*>& buffers) const {
  for (int step = 0; step < board_->size(); ++step) {
    const int r = (board_->rank() + step) % board_->size();
    const std::byte* from = r == board_->rank() ? call_.send : buffers[r];
    copy_bytes(call_.receive + call_.begin_bytes(r), from, call_.bytes(r));
  }
}

}  // namespace zea
