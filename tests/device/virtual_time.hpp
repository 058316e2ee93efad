// SPDX-License-Identifier: Apache-2.0
// Virtual time of the stand-in device: GEMMs and calls of NCCL take the seconds that a cost table
// says, however long they take the host; all else takes none. Work begins when its stream is free
// and the events that it waits for are reached, calls of NCCL in the order of their launches
// (launch_order.hpp). A call ends on all of its ranks at the same time: its cost after the last of
// them has begun.
#pragma once

#include <functional>
#include <string>

namespace zea::testing {

struct CostTable {
  double flops_per_second = 1e12;  ///< of GEMMs
  /// Seconds of a call such as "ncclAllGather", in which each of the ranks sends so many bytes.
  std::function<double(const std::string& call, double sent_bytes, int ranks)> call_seconds;
};

/// Work of a stream in virtual time, in seconds.
struct TimedWork {
  std::string name;
  std::string group = {};  ///< of the ranks of a call: its communicator's name
  int stream = 0;
  bool waits = false;  ///< nothing is done but to wait for that call in another stream
  double begin = 0;    ///< on this rank; it may wait for other ranks from then on
  double met = 0;      ///< when all ranks of a call have begun
  double end = 0;
};

}  // namespace zea::testing
