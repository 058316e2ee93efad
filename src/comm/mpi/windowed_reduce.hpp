// SPDX-License-Identifier: Apache-2.0
// A reduction whose pieces are fetched and summed in windows: while one is summed the next is on
// its way, and the memory to receive into stays small and warm however long the buffers are.
#pragma once

#include "comm/mpi/host_work.hpp"

namespace zea {

class WindowedReduce {
 public:
  /// Buffer of all ranks' pieces, packed in rank order; this rank's piece is reduced into `result`.
  struct Job {
    char* data;
    Counts counts;
    DType dtype;
    void* result;
    ReduceOp op;
  };

  /// Memory comes from `work`, which outlives this.
  WindowedReduce(const Channel& channel, int rank, Job job, HostWork& work);

  /// Equal on all ranks.
  int64_t num_windows() const { return num_windows_; }
  /// Posts the messages of a window; nothing beyond the last one.
  void post(HostWork& work, int64_t window) const;
  /// Reduces a window whose messages are complete.
  void combine(int64_t window) const;

 private:
  struct Cut {
    int64_t first;
    int64_t count;
  };
  /// A window of the piece of `rank`, in elements from its begin.
  Cut cut(int rank, int64_t window) const;
  char* piece(int rank, int64_t first) const;
  char* received(int rank, int64_t window) const;

  Channel channel_;
  int rank_;
  Job job_;
  std::vector<int64_t> displacements_;
  int64_t window_elements_ = 1;
  int64_t num_windows_ = 0;
  char* memory_ = nullptr;  ///< two windows from every rank, used in turn
};

}  // namespace zea
