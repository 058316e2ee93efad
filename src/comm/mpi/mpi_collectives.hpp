// SPDX-License-Identifier: Apache-2.0
// Collectives on host memory over MPI, composed of point-to-point messages: one way of splitting
// messages serves all of them, and zea computes sums itself, in rank order. Only broadcasts and
// small all-reduces, which gain from a tree, are MPI's.
#pragma once

#include <string>

#include "comm/communicator.hpp"
#include "comm/mpi/host_work.hpp"

namespace zea {

class MpiCollectives : public Collectives {
 public:
  MpiCollectives(const Communicator& communicator, int64_t max_message_elements,
                 std::string note = {});

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  const char* name() const override { return "mpi"; }
  std::string note() const override { return note_; }

  Pending start(const CollectiveCall& call) override;

 private:
  /// A buffer packed in rank order.
  struct Packed {
    char* data;
    const Counts& counts;
    DType dtype;

    char* at(int rank) const;
  };
  static Packed sent(const CollectiveCall& call);

  Channel next_channel();
  /// Returns the channel of send and recv.
  Channel message_channel() const;
  void post(HostWork& work, const CollectiveCall& call);
  void post_all_reduce(HostWork& work, const CollectiveCall& call);
  void post_all_gather(HostWork& work, const CollectiveCall& call);
  void post_reduce_scatter(HostWork& work, const CollectiveCall& call);
  void post_all_to_all(HostWork& work, const CollectiveCall& call);
  void post_broadcast(HostWork& work, const CollectiveCall& call) const;
  void post_gather(HostWork& work, const CollectiveCall& call);
  void post_gather_in_place(HostWork& work, const Channel& channel, const Packed& all) const;
  /// Fetches this rank's piece of `all` from every rank and reduces it into `result`, window by
  /// window.
  void post_reduce(HostWork& work, const Channel& channel, const Packed& all, void* result,
                   ReduceOp op) const;
  void post_tree_reduce(HostWork& work, char* data, int64_t count, DType dtype, ReduceOp op) const;

  Communicator communicator_;
  int64_t max_message_elements_;
  std::string note_;
  int sequence_ = 0;
};

}  // namespace zea
