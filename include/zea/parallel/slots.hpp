// SPDX-License-Identifier: Apache-2.0
// The memory of a plan's slots: what is gathered, or not yet reduced, for a few units at a time.
// Taken once: reused memory is faster to fill than fresh, and peers can reach it in place.
#pragma once

#include <vector>

#include "zea/comm/collectives.hpp"
#include "zea/parallel/ledger.hpp"
#include "zea/plan/schedule/schedule.hpp"

namespace zea {

class Slots {
 public:
  /// `reach` gives the memory where not null (on the host only); constructing is then collective
  /// over it.
  Slots(const SlotPlan& plan, Ledger& ledger, Collectives* reach, at::Device device);

  /// The slot of `buffer`, which nobody else may have: (elements) of whatever was there.
  at::Tensor take(int buffer, int64_t elements, at::ScalarType dtype);
  void give_back(int buffer);
  /// The buffer that has the slot of `buffer`; -1: none.
  int holder(int buffer) const { return holders_[plan_.slot_of_buffer[buffer]]; }

 private:
  const SlotPlan& plan_;
  std::vector<Buffer> memory_;  ///< of each slot, in bytes
  std::vector<int> holders_;    ///< of each slot
};

}  // namespace zea
