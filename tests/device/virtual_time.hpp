// SPDX-License-Identifier: Apache-2.0
// Virtual time of the stand-in device: GEMMs and calls of NCCL take the seconds that a cost table
// says, however long they take the host; all else takes none. Work begins when its stream is free
// and the events that it waits for are reached. A call of NCCL begins no earlier than every call
// that the process launched before it (NCCL_LAUNCH_ORDER_IMPLICIT), whatever their communicators.
// It ends on all of its ranks at the same time: its cost after the last of them has begun.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace zea::testing {

struct CostTable {
  double flops_per_second = 1e12;  ///< of GEMMs
  /// Seconds of a call such as "ncclAllGather", in which each of the ranks sends so many bytes.
  std::function<double(const std::string& call, double sent_bytes, int ranks)> call_seconds;
};

/// Work of a stream in virtual time, in seconds.
struct TimedWork {
  std::string name;
  int stream = 0;
  double begin = 0;  ///< on this rank; it may wait for other ranks from then on
  double met = 0;    ///< when all ranks of a call have begun
  double end = 0;
};

/// The order in which the process launches calls of NCCL: each begins after all earlier ones have.
class LaunchOrder {
 public:
  int64_t take() { return taken_++; }  ///< by the thread that launches
  /// Waits for the turn, and passes it on. Returns when the call begins, if its stream is free from
  /// `free` on.
  double begin(int64_t turn, double free);
  /// To be called while nothing is launched.
  void restart_time();

 private:
  int64_t taken_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t next_ = 0;
  double last_begin_ = 0;
};

}  // namespace zea::testing
