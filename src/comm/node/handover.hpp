// SPDX-License-Identifier: Apache-2.0
// How ranks of a node come by each other's shared memory, which has no name: it is sent to them
// through sockets that vanish with their processes; or, where those do not reach each other, opened
// in the folder of the owner's process; or, where that is forbidden, too, it has a name for the
// moment until all have opened it. A rank that is killed leaves nothing but, in that moment, a
// name.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/node/segment.hpp"

namespace zea {

/// Where a rank's memory is found, as it travels.
struct SegmentOffer {
  char name[64] = {};  ///< no other process has it
  int64_t bytes = 0;
  SegmentMark mark;
  int64_t process = 0;  ///< as its owner numbers them
  int32_t file = -1;    ///< as its owner numbers them
};

/// Sets the parts that do not depend on the memory.
SegmentOffer make_segment_offer(int64_t bytes);

/// What one way of handing over needs; it outlives the handover.
struct HandoverRanks {
  int rank = 0;
  int file = -1;  ///< this rank's
  std::vector<SegmentOffer> offers;
  std::vector<SharedSegment>* segments = nullptr;  ///< filled in for all but this rank

  int size() const { return static_cast<int>(offers.size()); }
  /// Maps what is said to be a rank's file; throws CommError where it is not.
  void accept(int from, const Descriptor& received) const;
};

/// One way, in steps that every rank ends before any begins the next. A step throws CommError where
/// this way is closed; all ranks then leave it.
class Handover {
 public:
  virtual ~Handover() = default;
  virtual int num_steps() const = 0;
  virtual void take_step(int step) = 0;
};

/// The ways, in the order in which they are tried. Each is made when its turn comes.
constexpr int kNumHandovers = 3;
std::unique_ptr<Handover> make_handover(int way, const HandoverRanks& ranks);

}  // namespace zea
