// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other for a line of the log. It is under way while the next step is
// launched, where that is known before the line: then no rank waits for another in between.
#pragma once

#include <optional>
#include <vector>

#include "comm/collectives.hpp"
#include "parallel/device_memory.hpp"

namespace zea {

class IntervalFacts {
 public:
  struct OfRanks {
    std::vector<double> own_seconds;   ///< of each rank
    std::optional<DeviceMemory> most;  ///< of any rank; none on the host
  };

  explicit IntervalFacts(Collectives& control) : control_(control) {}

  /// Of the steps that end here. Returns at once; `memory` is there on all ranks or on none.
  /// Collective; what was told before has been heard.
  void tell(double own_seconds, const std::optional<DeviceMemory>& memory);
  /// Whether something was told that was not heard.
  bool are_told() const { return !all_.empty(); }
  /// What all ranks told; waits until the last one has.
  OfRanks hear();

 private:
  Collectives& control_;
  bool has_memory_ = false;
  std::vector<double> own_, all_;
  Pending pending_;  ///< ends before what it reads and writes
};

}  // namespace zea
