// SPDX-License-Identifier: Apache-2.0
// A collective under way among the ranks of a node. A small one travels beside the flags; a large
// one works on the peers' buffers in place where every rank can reach them, and passes through the
// board's windows where not.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/node/node_board.hpp"
#include "comm/node/node_call.hpp"
#include "comm/node/shared_memory.hpp"
#include "comm/node/window_relay.hpp"
#include "comm/progress.hpp"

namespace zea {

class NodeWork : public Pending::Work, private Progress::Task {
 public:
  /// `shared` says where what this rank lets its peers read lies. Calls with no elements at all are
  /// not for this.
  NodeWork(std::shared_ptr<Progress> progress, std::shared_ptr<NodeBoard> board, NodeCall call,
           SharedAddress shared);
  NodeWork(const NodeWork&) = delete;
  NodeWork& operator=(const NodeWork&) = delete;
  ~NodeWork() override;

  void wait() override;
  bool test() override;

 private:
  enum class State { NoSlot, Small, Queued, Passing, Draining, Done };

  bool advance() noexcept override;
  /// Takes one step where it can: whether it did.
  bool step();
  bool announce();
  bool finish_small();
  bool choose_way();
  bool pass();
  void work_in_place() const;
  void reduce_in_place(const std::vector<std::byte*>& buffers) const;
  void gather_in_place(const std::vector<std::byte*>& buffers) const;
  bool can_all_reach() const;
  void end_own_part(State next);
  bool is_small() const { return call_.most_sent_bytes() <= NodeBoard::kInlineBytes; }
  int64_t own_bytes() const { return call_.sent_bytes(board_->rank()); }

  std::shared_ptr<Progress> progress_;
  std::shared_ptr<NodeBoard> board_;
  NodeCall call_;
  SharedAddress shared_;
  uint64_t number_;
  uint64_t ticket_ = 0;
  State state_ = State::NoSlot;
  std::optional<WindowRelay> relay_;
  bool relay_moved_ = false;
};

}  // namespace zea
