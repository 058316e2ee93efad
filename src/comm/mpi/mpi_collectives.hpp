// SPDX-License-Identifier: Apache-2.0
// Collectives on host memory over MPI, made of point-to-point messages: one cutting into pieces
// serves all of them, and sums are taken by us, in rank order. Only what gains from a tree
// (broadcast, small all-reduces) is left to MPI.
#pragma once

#include <span>
#include <string>

#include "mpi/message.hpp"
#include "zea/comm/communicator.hpp"

namespace zea {

class MpiCollectives : public Collectives {
 public:
  MpiCollectives(const Communicator& communicator, int64_t max_message_elements,
                 std::string note = {});

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  const char* name() const override { return "mpi"; }
  std::string note() const override { return note_; }

  Pending all_reduce(void* data, int64_t count, DType dtype, ReduceOp op) override;
  Pending all_gather(const void* send, void* receive, const Counts& counts, DType dtype) override;
  Pending reduce_scatter(const void* send, void* receive, const Counts& counts,
                         DType dtype) override;
  Pending all_to_all(const void* send, const Counts& send_counts, void* receive,
                     const Counts& receive_counts, DType dtype) override;
  Pending broadcast(void* data, int64_t count, DType dtype, int root) override;
  Pending gather(const void* send, void* receive, const Counts& counts, DType dtype,
                 int root) override;
  Pending scatter(const void* send, void* receive, const Counts& counts, DType dtype,
                  int root) override;
  Pending send(const void* data, int64_t count, DType dtype, int destination) override;
  Pending recv(void* data, int64_t count, DType dtype, int source) override;
  void barrier() override;

 private:
  /// A buffer packed in rank order.
  struct Packed {
    char* data;
    const Counts& counts;
    DType dtype;

    char* at(int rank) const;
  };

  std::unique_ptr<HostWork> new_work() const;
  Channel next_channel();
  /// Posts the pieces that this rank sends of `from`, and those it receives into `to`; one with
  /// itself is left out.
  void post_all_to_all(HostWork& work, const Channel& channel, const Packed& from,
                       const Packed& to) const;
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
