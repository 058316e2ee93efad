// SPDX-License-Identifier: Apache-2.0
// A pending collective among the ranks of a node. It works on the peers' buffers in place if every
// rank can reach them. Small calls, and calls on other buffers, pass through the slots of the
// board, one piece per round.
#pragma once

#include <memory>
#include <vector>

#include "comm/node/node_board.hpp"
#include "comm/progress.hpp"

namespace zea {

/// A reduction over ranges of a buffer, one range for each rank, or a gathering of such ranges, or
/// one after the other.
struct NodeCall {
  bool reduces = false;
  bool gathers = false;
  /// Reduces: all ranges. Else: this rank's.
  const std::byte* send = nullptr;
  /// Gathers: all ranges. Else: this rank's.
  std::byte* receive = nullptr;
  /// Where the range of each rank begins, in elements, and where the last one ends.
  std::vector<int64_t> begins{};
  DType dtype = DType::Float32;
  ReduceOp op = ReduceOp::Sum;
  /// Reduces only: leaves sums of bf16 and fp16 in `receive` as fp32.
  bool keeps_wide = false;

  int64_t width() const { return static_cast<int64_t>(element_bytes(dtype)); }
  int64_t begin_bytes(int rank) const { return begins[rank] * width(); }
  int64_t elements(int rank) const { return begins[rank + 1] - begins[rank]; }
  int64_t bytes(int rank) const { return elements(rank) * width(); }
  int64_t longest() const;
  /// Bytes that this rank lets its peers read.
  int64_t sent_bytes(int rank) const { return reduces ? begins.back() * width() : bytes(rank); }
  /// The most bytes that any rank lets its peers read; equal on all ranks.
  int64_t most_sent_bytes() const { return (reduces ? begins.back() : longest()) * width(); }
  /// Whether the call is small: it does not use the peers' buffers and is done after one round.
  bool is_small() const { return most_sent_bytes() <= int64_t{8} << 10; }
};

/// Begins of ranges with these counts.
std::vector<int64_t> begins_of(const Counts& counts);
/// Counts of nearly equal ranges whose bounds are those of cache lines.
Counts even_line_counts(int64_t count, DType dtype, int size);

class NodeWork : public ProgressWork {
 public:
  /// `shared` says where `call.send` lies. The call has elements.
  NodeWork(std::shared_ptr<Progress> progress, std::shared_ptr<NodeBoard> board, NodeCall call,
           SharedAddress shared);
  NodeWork(const NodeWork&) = delete;
  NodeWork& operator=(const NodeWork&) = delete;
  ~NodeWork() override { leave(); }

 private:
  enum class State { New, Announced, InSlots, InPlace };

  bool advance() noexcept override;
  /// Takes one step if possible and returns whether it did.
  bool step();
  bool announce();
  bool choose_way();
  void work_in_place();
  void reduce_in_place(const std::vector<std::byte*>& buffers) const;
  bool pass_slots();
  bool fill();
  bool combine();
  bool empty();
  bool can_all_reach() const;
  /// Every rank reduces all elements: one round trip less.
  bool reduces_all() const { return call_.is_small() && call_.reduces && call_.gathers; }
  /// The first element of each rank's range that is processed in a round, and their number.
  int64_t first_element(uint64_t round) const;
  int64_t elements(int rank, uint64_t round) const;
  std::byte* piece(int rank, uint64_t round, int of_range) const;

  std::shared_ptr<NodeBoard> board_;
  NodeCall call_;
  SharedAddress shared_;
  State state_ = State::New;
  int64_t piece_elements_;  ///< of one range in one slot
  uint64_t announcement_;  ///< the round of a large call in which ranks say where their buffers lie
  uint64_t begin_, end_;   ///< rounds through the slots
  uint64_t filled_, combined_, emptied_;
};

}  // namespace zea
