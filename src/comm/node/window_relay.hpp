// SPDX-License-Identifier: Apache-2.0
// A large call whose buffers peers cannot reach: it passes through the windows of the board, a
// window at a time. Each rank fills its window with what the others need, combines its own cut from
// theirs, and empties theirs of the results; while one window is combined the next is filled.
#pragma once

#include "comm/node/node_board.hpp"
#include "comm/node/node_call.hpp"

namespace zea {

class WindowRelay {
 public:
  /// For the call that has its turn; both outlive this.
  WindowRelay(NodeBoard& board, const NodeCall& call);

  /// Goes as far as it can without waiting: whether it went anywhere.
  bool advance();
  /// Whether the caller's buffers are free, whatever the peers still do.
  bool is_done() const { return emptied_ == num_windows_; }

 private:
  bool fill();
  bool combine();
  bool empty();
  /// Elements of the cut of `rank` that pass in this window.
  int64_t elements(int rank, uint64_t window) const;
  /// Where they begin in the cut.
  int64_t first(uint64_t window) const;
  void combine_own(uint64_t window, std::byte* result) const;
  bool may_reuse(NodeBoard::Step step, uint64_t window) const;
  int peer(int step) const { return (board_.rank() + step) % board_.size(); }

  NodeBoard& board_;
  const NodeCall& call_;
  int64_t piece_elements_;
  uint64_t num_windows_;
  uint64_t base_;  ///< windows of earlier calls
  uint64_t filled_ = 0;
  uint64_t combined_ = 0;
  uint64_t emptied_ = 0;
};

}  // namespace zea
