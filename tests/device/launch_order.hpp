// SPDX-License-Identifier: Apache-2.0
// The order in which kernels of NCCL begin on a device: each after all that the process launched
// before it have begun, whatever their communicators (NCCL_LAUNCH_ORDER_IMPLICIT). A kernel holds
// thread blocks from its begin to its end; one that finds too few waits, and all behind it with it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>

namespace zea::testing {

class LaunchOrder {
 public:
  /// Thread blocks of an H100: one of NCCL's fills an SM.
  static constexpr int kUsualBlocks = 132;

  int64_t take() { return taken_++; }  ///< by the thread that launches
  /// Waits for the turn and for thread blocks, and passes the turn on. Returns the virtual time at
  /// which the kernel begins, if its stream is free from `free` on.
  double begin(int64_t turn, double free, int blocks);
  /// The kernel of this turn has ended, at this virtual time.
  void end(int64_t turn, double time);

  void set_blocks(int blocks) { blocks_ = blocks; }
  int blocks() const { return blocks_; }
  /// To be called while nothing is launched.
  void restart_time();

 private:
  struct Running {
    int blocks;
    double end = std::numeric_limits<double>::infinity();  ///< unknown until it has ended
  };

  /// Forgets what has ended at `time`. Returns the blocks that the others hold.
  int held_at(double time);

  int64_t taken_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t next_ = 0;
  double last_begin_ = 0;
  int blocks_ = kUsualBlocks;
  std::map<int64_t, Running> running_;  ///< by turn
};

}  // namespace zea::testing
